"""A kernel that shares its GPU through NVIDIA's Multi-Process Service: saves are refused with the reason, and it computes on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import KernelNotCheckpointable
from jupyter_gpuckpt.wire import calls
from tests.conftest import wait_for
from tests.gpu.test_kernel import done, kernel, run

__all__ = ["kernel"]
pytestmark = pytest.mark.gpu

CONTROL = "nvidia-cuda-mps-control"
SETUP = "import torch; x = torch.arange(1 << 24, device='cuda'); print(int(x.sum()))"
EXPECTED = str((1 << 24) * ((1 << 24) - 1) // 2)


@pytest.fixture(params=["ferry", "driver"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Choose how GPU memory is saved: by the ferry, or by the driver."""
    if request.param == "driver":
        monkeypatch.setenv("JUPYTER_GPUCKPT_GPU_COPY", "driver")
    return str(request.param)


@pytest.fixture(autouse=True)
def service(
    way: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Run the service while a test runs, for the programs that the test starts."""
    if not shutil.which(CONTROL):
        pytest.skip(f"{CONTROL} is not installed")
    folder = tmp_path_factory.mktemp("mps")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder / "pipe"))
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(folder / "log"))
    (folder / "pipe").mkdir()
    (folder / "log").mkdir()
    control = subprocess.Popen([CONTROL, "-f"], stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: (folder / "pipe" / "control").exists() or control.poll() is not None)
        if control.poll() is not None:
            pytest.skip(f"{CONTROL} does not run here: {logged(folder)}")
        yield
    finally:
        subprocess.run([CONTROL], input=b"quit -t 1\n", check=False, timeout=30)
        control.kill()
        control.wait()
        print(logged(folder))


def logged(folder: Path) -> str:
    return "".join(file.read_text(errors="replace") for file in (folder / "log").iterdir())


def test_it_is_refused_and_computes_on(
    service: None, kernel: tuple[KernelManager, BlockingKernelClient]
) -> None:
    manager, client = kernel
    assert run(client, SETUP).strip() == EXPECTED
    assert manager.provisioner is not None
    kernel_id = manager.provisioner.kernel_id
    with Client.connect() as daemon:
        for call in (calls.save(kernel_id), calls.suspend(kernel_id), calls.park(kernel_id)):
            with pytest.raises(KernelNotCheckpointable, match=r"\(MPS\)") as caught:
                done(daemon, daemon.send(call))
            assert "CUDA_MPS_PIPE_DIRECTORY" in caught.value.hint
            assert run(client, "print(int((x + 1).sum() - x.numel()))").strip() == EXPECTED
