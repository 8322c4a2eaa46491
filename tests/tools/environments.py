"""Folders with Python packages that the environment of the tests lacks, or has in another version."""

import subprocess
import sys
import sysconfig
from pathlib import Path

SITE = sysconfig.get_path("purelib")


def with_packages(folder: Path, *requirements: str) -> str:
    """Install packages, and what they need beyond this environment, below a folder; return the value of PYTHONPATH for them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (found,) = folder.glob("lib/python3.*/site-packages")
    (found / "zz_tests.pth").write_text(f"import site; site.addsitedir({SITE!r})\n")
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", *requirements]
    subprocess.run(install, check=True)
    return str(found)
