"""One GPU for each test, and another program on it."""

from __future__ import annotations

import os
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


@pytest.fixture(autouse=True)
def one_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a test starts see the first GPU only: frameworks use all that they see. Not with the marker `several_gpus`."""
    if request.node.get_closest_marker("several_gpus") is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible.partition(",")[0])


@pytest.fixture
def hog() -> Callable[..., AbstractContextManager[None]]:
    """Return a program that leaves 1 GB, or so many bytes, of the GPU to the others, as long as a `with` block lasts."""

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
