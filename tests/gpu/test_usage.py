"""What is told of a kernel on a GPU: its memory there, how busy it keeps it, and which variables lie there."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.host import gpu
from tests.server.conftest import eventually, make_server  # noqa: F401 - fixtures

pytestmark = pytest.mark.gpu

GB = 1 << 30
SETUP = """
import torch
big = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
model = torch.nn.Linear(4096, 4096, device="cuda")
small = torch.arange(10)
"""
BUSY = """
import time
square = torch.randn(4096, 4096, device="cuda")
print("begun")
end = time.monotonic() + 60
while time.monotonic() < end:
    square @ square
    torch.cuda.synchronize()
"""


def test_a_kernel_on_a_gpu_tells_what_it_uses_and_what_lies_there(make_server, eventually):  # noqa: F811
    pytest.importorskip("torch")
    if not gpu.gpus():
        pytest.skip("there is no GPU here")
    server = make_server().start()
    page = server.open()
    page.run(SETUP)
    eventually(lambda: server.kernel(page.kernel_id)["gpu_bytes"] > GB)

    listed = server.get(f"api/gpuckpt/kernels/{page.kernel_id}/variables")["variables"]
    told = {variable["name"]: variable for variable in listed}
    assert told["big"] == {
        "name": "big",
        "kind": "Tensor on cuda:0",
        "bytes": GB,
        "summary": f"uint8 ({GB},)",
    }
    assert told["model"]["kind"] == "Linear on cuda:0"
    assert told["model"]["bytes"] == pytest.approx(4 * 4096 * 4097, rel=0.01)
    assert told["small"]["kind"] == "Tensor"

    taken = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("big += 1; small += 1")
    compared = server.get(f"api/gpuckpt/snapshots/{taken}/compare")
    # Reading what lies on the GPU would disturb it.
    assert {"big", "model"} <= set(compared["unknown"])
    assert [change["name"] for change in compared["changed"]] == ["small"]

    cell = page.execute(BUSY)
    page.wait_for(lambda message: message["content"].get("text") == "begun\n")
    if gpu.utilization_of([]) is not None:  # else the driver does not count by process
        eventually(lambda: (server.kernel(page.kernel_id)["gpu_utilization"] or 0) > 30, 40)
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")
    page.reply(cell)

    server.do("suspend", page.kernel_id)
    shown = server.kernel(page.kernel_id)
    assert (shown["gpu_bytes"], shown["memory_bytes"]) == (0, 0)
    assert shown["suspended_bytes"] > GB
    assert shown["resume_seconds"] > 0
