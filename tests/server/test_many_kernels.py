"""A server with many kernels, some of which print all the time, stops in order, and the next one has everything.

GPUCKPT_KERNELS=20 for the full size.
"""

import os
import re
import signal
import time

import pytest

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("GPUCKPT_KERNELS", "6"))
BUSY = max(2, COUNT // 4)
DEADLINE_SECONDS = 60
CELL = "import time\nfor number in range({count}):\n    print(number)\n    time.sleep(0.01)"
LINES = 150 * COUNT


def shown(page, request):
    return page.printed(request).splitlines()


def test_many_kernels_outlive_their_server(make_server, eventually):
    server = make_server(f"--GpuCkptServer.stop_timeout={DEADLINE_SECONDS}").start()
    pages = [server.open(f"{number}.ipynb") for number in range(COUNT)]
    for number, page in enumerate(pages):
        page.run(f"x = {number}; data = bytes(range(256)) * {number * 4000}")
    busy, idle = pages[:BUSY], pages[BUSY:]
    requests = [page.execute(CELL.format(count=LINES)) for page in busy]
    for page, request in zip(busy, requests, strict=True):
        eventually(lambda page=page, request=request: len(shown(page, request)) > 20)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_SECONDS) == 0, server.log()
    print(f"{COUNT} kernels, {BUSY} busy: stopped in {time.monotonic() - began:.1f} s")
    for page in pages:
        page.close()

    server.start()
    shown_states = {kernel["id"]: kernel["execution_state"] for kernel in server.get("api/kernels")}
    assert set(shown_states) == {page.kernel_id for page in pages}
    assert all(shown_states[page.kernel_id] == "suspended" for page in idle)
    # One comes back under its session id, the others as new pages.
    again = [server.page(busy[0].kernel_id, client_id=busy[0].client_id)]
    again += [server.page(page.kernel_id) for page in busy[1:]]
    everything = [str(number) for number in range(LINES)]
    for number, (old, page, request) in enumerate(zip(busy, again, requests, strict=True)):
        page.wait_for(
            lambda m, request=request: (
                m["parent_header"].get("msg_id") == request
                and m["content"].get("execution_state") == "idle"
            ),
            LINES * 0.01 * 3 + 120,
        )
        before = shown(old, request) if number == 0 else []
        assert before + shown(page, request) == everything
    for number, page in enumerate(idle, BUSY):
        assert server.page(page.kernel_id).run("print(x)") == f"{number}\n"
    sizes = re.findall(r"suspend of kernel \S+ succeeded", server.log_path.read_text())
    assert len(sizes) == COUNT
