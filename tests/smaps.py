"""What Linux says about the memory of a process (man proc_pid_smaps)."""

from __future__ import annotations

from pathlib import Path


def flags_at(pid: int, address: int) -> list[str]:
    """Return the flags (VmFlags) of the mapping of a process that contains an address."""
    found = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            start, _, end = head.partition("-")
            found = int(start, 16) <= address < int(end, 16)
        elif found and head == "VmFlags:":
            return rest.split()
    raise AssertionError(f"nothing is mapped at {address:#x}")
