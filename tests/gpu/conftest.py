"""Another program on the GPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

HOG = """
    import sys, torch
    free, _ = torch.cuda.mem_get_info()
    x = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
    print("ready", flush=True)
    input()
"""


@pytest.fixture
def hog() -> Callable[..., AbstractContextManager[None]]:
    """A program that leaves 1 GB, or so many bytes, of the GPU to the others, as long as a `with` block lasts."""

    @contextmanager
    def running(leave: int = 1 << 30) -> Iterator[None]:
        words = [sys.executable, "-c", textwrap.dedent(HOG), str(leave)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield
            finally:
                process.kill()

    return running
