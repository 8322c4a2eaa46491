"""The numbers of a running server, which the hub requests from time to time."""

import pytest

from tests.conftest import wait_for
from tests.hub.test_stops import REPORTER, report_of

pytestmark = pytest.mark.slow

CONFIG = """
from jupyter_gpuckpt.hub import spawner

spawner._REPORT_SECONDS = c.Spawner.poll_interval = 1
c.GpuCkptSpawnerMixin.disk_limit = 1_000_000
"""


def test_an_administrator_sees_what_the_snapshots_of_a_running_server_take(make_hub):
    hub = make_hub(CONFIG + REPORTER)
    user = hub.user("eve")
    user.start()
    page = user.open("a.ipynb")
    page.run("x = 41")
    user.do("save", page.kernel_id)

    def held():
        return next((one for one in report_of(hub) if one["disk_bytes"] > 1_000_000), None)

    found = wait_for(held, said=hub.log)
    assert (found["user"], found["running"], found["sessions"]) == ("eve", True, 0)
    # The requests are nobody's activity, after which a culler would wait anew.
    user.close_pages()
    before = user.get("api/status")["last_activity"]
    wait_for(lambda: held()["at"] > found["at"] + 1, said=hub.log)
    assert user.get("api/status")["last_activity"] == before
    # It is more than the limit, which keeps nobody from saving.
    assert found["limit_bytes"] == 1_000_000
    assert "eve: the snapshots take " in hub.log_path.read_text()
    user.stop()
    assert any("your limit is 1.0 MB" in message for message in user.start())
