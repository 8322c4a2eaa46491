"""The path of the CRIU program in this distribution."""

from pathlib import Path

#: The program.
CRIU = Path(__file__).with_name("criu")
