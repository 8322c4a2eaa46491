"""Says where the CRIU of this distribution lies, and does nothing else."""

from pathlib import Path

#: The program.
CRIU = Path(__file__).with_name("criu")
