"""Users whose servers are jobs of a real Slurm find what they left: after a stop, a scancel, a preemption, a failure of the node."""

from contextlib import ExitStack

import pytest

from tests.conftest import wait_for
from tests.engines.slurm_hub import SlurmHub
from tests.server.test_time_travel import branch

pytestmark = pytest.mark.slow


@pytest.fixture
def make_hub(slurm):
    """Start hubs whose users' servers are jobs, with lines of configuration of their own."""
    with ExitStack() as stack:

        def make(more=""):
            hub = SlurmHub(slurm, more)
            stack.callback(hub.end)
            return hub.start()

        yield make


def test_a_user_finds_what_was_left_however_the_job_ended(make_hub, slurm):
    hub = make_hub()
    alice = hub.user("alice")
    alice.start()
    job = hub.job()
    assert (job["Requeue"], job["Partition"]) == ("0", "low")
    page = alice.open("work.ipynb")
    assert (
        page.run("import os; count = 0; print(os.environ['SLURM_JOB_ID'])") == f"{job['JobId']}\n"
    )

    # By the user: the hub waits for the suspend before it cancels the job.
    alice.stop()
    assert hub.log_path.read_text().count("1 of 1 kernel suspended") == 1
    assert "1 suspended session is waiting: work.ipynb" in alice.start()
    find_again(hub, alice, page, 1)

    # By an administrator of the cluster who knows nothing of the hub: the server suspends its kernel on SIGTERM.
    alice.close_pages()
    slurm("scancel", hub.job()["JobId"])
    alice.wait_until_stopped()
    alice.start()
    find_again(hub, alice, page, 2)

    # By Slurm, for a job with priority on the same node, which stays there.
    alice.close_pages()
    first = hub.job()
    other = slurm.submit(
        *("--partition=high", f"--nodelist={first['NodeList']}", "--exclusive"),
        *("--output=/dev/null", "--wrap=exec sleep infinity"),
    )
    alice.wait_until_stopped()
    slurm.wait_for_state(other, "RUNNING")
    alice.start()
    assert hub.job()["NodeList"] != first["NodeList"]
    assert hub.job()["JobId"] != first["JobId"]
    find_again(hub, alice, page, 3)

    # Neither of the last two jobs was stopped by the hub.
    assert hub.log_path.read_text().count("1 of 1 kernel suspended") == 1


def test_hub_and_proxy_follow_a_job_that_slurm_starts_again_on_another_node(make_hub, slurm):
    hub = make_hub('c.SlurmSpawner.req_options = "--requeue"\n')
    alice = hub.user("alice")
    alice.start()
    first = hub.job()
    assert first["Requeue"] == "1"
    page = alice.open("work.ipynb")
    page.run("x = 41")
    alice.do("save", page.kernel_id)
    alice.close_pages()
    slurm.kill_node(first["NodeList"])
    wait_for(lambda: hub.job()["Restarts"] == "1", said=hub.log)
    slurm.wait_for_state(first["JobId"], "RUNNING")
    # The user does nothing, and the address is the same.
    wait_for(lambda: alice.request("GET", "api/status", ok=False).is_success, said=hub.log)
    assert hub.job()["NodeList"] != first["NodeList"]
    (snapshot,) = alice.get("api/gpuckpt/snapshots")["snapshots"]
    again = branch(alice, snapshot["snapshot_id"])
    said = again.run("import os; print(x + 1, os.environ['SLURM_RESTART_COUNT'])")
    assert said == "42 1\n"

    # The hub reaches the server, too.
    alice.stop()
    assert hub.log_path.read_text().count("1 of 1 kernel suspended") == 1
    alice.start()
    assert hub.job()["JobId"] != first["JobId"]


def find_again(hub, user, page, count):
    """Find the session, suspended, and go on with it by a cell, which has the variables of the present job."""
    (session,) = user.get("api/sessions")
    assert session["kernel"]["id"] == page.kernel_id
    assert session["kernel"]["execution_state"] == "suspended", hub.log()
    said = user.page(page.kernel_id).run("count += 1; print(count, os.environ['SLURM_JOB_ID'])")
    assert said == f"{count} {hub.job()['JobId']}\n"
    wait_for(lambda: user.get("api/sessions")[0]["kernel"]["execution_state"] == "idle")
