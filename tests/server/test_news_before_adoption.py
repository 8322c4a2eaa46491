"""What becomes of a kernel while a server that has claimed it has not listed it yet."""

from pathlib import Path

import pytest

from tests.conftest import wait_for

#: Operations are in flight when the kernels are claimed (CRIU waits as long as there is a file), and have ended before they
#: are listed; one kernel ends meanwhile.
LATE = """
import asyncio, os
from pathlib import Path
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.server.kernels.daemon_link import DaemonLink
claim = DaemonLink.claim
async def claim_in_flight(link):
    daemon, hold = link.daemon, Path(os.environ["TEST_HOLD"])
    hold.touch()
    for kernel in await daemon.send(calls.kernels()):
        verb = calls.resume if kernel.state == "suspended" else calls.save
        await daemon.send(verb(kernel.kernel_id))
    claimed = await claim(link)
    hold.unlink()
    print("claimed", sorted(str(saved.kernel.state) for saved in claimed), flush=True)
    while {str(kernel.state) for kernel in link.mirror.kernels.values()} - {"running"}:
        await asyncio.sleep(0.01)
    for saved in claimed:
        if saved.jupyter["path"] == "ends.ipynb":
            await daemon.send(calls.kill(saved.kernel.kernel_id))
    return claimed
DaemonLink.claim = claim_in_flight
"""


@pytest.fixture
def server(make_server, daemon_env, short_dir):
    """Return a server of a daemon whose CRIU waits as long as the file is there."""
    hold, criu = short_dir / "hold", short_dir / "criu"
    criu.write_text(
        "#!/bin/sh\n"
        f'case "$1" in dump | restore) while [ -e {hold} ]; do sleep 0.05; done;; esac\n'
        f'exec {daemon_env["JUPYTER_GPUCKPT_CRIU"]} "$@"\n'
    )
    criu.chmod(0o755)
    return make_server(env={"JUPYTER_GPUCKPT_CRIU": str(criu), "TEST_HOLD": str(hold)}).start()


def test_what_happens_between_claim_and_adoption_is_not_lost(server):
    pages = [server.open(f"{name}.ipynb") for name in ("saved", "suspended", "ends")]
    for page in pages:
        page.run("x = 41")
    server.do("suspend", pages[1].kernel_id)
    config = Path(server.env["JUPYTER_CONFIG_DIR"])
    config.mkdir(exist_ok=True)
    (config / "jupyter_server_config.py").write_text(LATE)
    server.kill()
    server.start()
    assert "claimed ['resuming', 'saving', 'saving']" in server.log_path.read_text()
    for page in pages[:2]:
        wait_for(lambda page=page: server.kernel(page.kernel_id)["state"] == "running")
        assert server.page(page.kernel_id).run("print(x + 1)") == "42\n"
    # As any kernel that ends by itself: it is started anew.
    wait_for(lambda: "restarting kernel" in server.log_path.read_text().lower())
