"""A search in the memory of a process."""

import re
from pathlib import Path


def in_memory(pid, text):
    """Return whether a text is anywhere in the memory of a process."""
    return text in found_in_memory(pid, [text])


def found_in_memory(pid, texts):
    """Return those of the texts that are anywhere in the memory of a process."""
    found = set()
    areas = re.findall(r"^(\w+)-(\w+) r.*$", Path(f"/proc/{pid}/maps").read_text(), re.M)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for begin, end in areas:
            try:
                memory.seek(int(begin, 16))
                content = memory.read(int(end, 16) - int(begin, 16))
            except (OSError, ValueError, OverflowError):
                continue  # vvar and the like
            found.update(text for text in texts if text in content)
    return found
