"""Notebooks and servers in jobs of a real Slurm with two nodes: preempted, at their time limit, canceled, on a node that fails."""

import os
from itertools import pairwise

import httpx
import pytest

from jupyter_gpuckpt.cli import slurm_script
from tests.conftest import environment, missing, only_for_root, wait_for
from tests.engines.slurm_cluster import SlurmCluster
from tests.engines.slurm_training import GATE, PAPERMILL, Training, undisturbed
from tests.server.conftest import Server

pytestmark = pytest.mark.slow

#: What a cell says of the job in which it is executed.
PLACE = 'import os\nprint(*(os.environ[f"SLURM{name}"] for name in ("_JOB_ID", "D_NODENAME")))'


def test_a_training_that_is_preempted_five_times_ends_as_an_undisturbed_one(slurm, short_dir):
    expected = undisturbed(short_dir / "undisturbed")
    training = Training(slurm, short_dir / "work")
    training.submit()
    nodes = [training.node()]
    for _ in range(5):
        training.wait_for_steps(20)
        with training.preempted() as node:
            nodes.append(node)
    assert all(before != after for before, after in pairwise(nodes)), nodes
    assert training.finish() == expected
    assert training.log.read_text().count("The kernel was suspended") == 5
    # A job whose notebook has ended is not started again.
    assert slurm.job(training.job_id)["Restarts"] == "5"


def test_a_job_of_papermill_goes_on_after_a_preemption(slurm, short_dir):
    expected = undisturbed(short_dir / "undisturbed")
    training = Training(slurm, short_dir / "work")
    training.submit(command=PAPERMILL)
    training.wait_for_steps(20)
    with training.preempted():
        training.wait_for_steps(20)
    assert training.finish() == expected


def test_an_ordinary_users_job_is_preempted_and_goes_on(criu, short_dir):
    """The user has no right; kernels are saved in a user namespace."""
    only_for_root("the nodes of these tests")
    if obstacle := SlurmCluster.obstacle():
        missing("slurm", obstacle)
    short_dir.chmod(0o755)
    home = short_dir / "home"
    home.mkdir()
    env = environment(criu, home) | {"HOME": str(home), "USER": "games", "TMPDIR": "/tmp"}
    cluster = SlurmCluster(short_dir, env, user="games")
    os.chown(home, cluster.user.pw_uid, cluster.user.pw_gid)
    try:
        cluster.start()
        training = Training(cluster, short_dir / "work", last_cell="import os\nprint(os.getuid())")
        training.submit()
        training.wait_for_steps(20)
        with training.preempted():
            training.wait_for_steps(20)
        assert training.finish()[-1] == [f"{cluster.user.pw_uid}\n"]
        assert training.log.read_text().count("The kernel was suspended") == 1
    finally:
        cluster.end()


def test_a_job_goes_on_after_its_time_limit_with_the_variables_of_the_new_node(slurm, short_dir):
    training = Training(slurm, short_dir / "work", last_cell=PLACE)
    training.submit("--time=30")
    first = training.node()
    training.wait_for_steps(10)
    # From now on less than the time of the signal is left.
    slurm("scontrol", "update", f"JobId={training.job_id}", "TimeLimit=2")
    wait_for(lambda: slurm.job(training.job_id)["Restarts"] == "1", 180, training.said)
    slurm("scontrol", "update", f"JobId={training.job_id}", "TimeLimit=30", f"ExcNodeList={first}")
    second = training.node()
    assert first != second
    assert training.finish()[-1] == [f"{training.job_id} {second}\n"]


def test_a_canceled_job_stays_canceled_and_the_next_job_goes_on_with_its_kernel(slurm, short_dir):
    expected = undisturbed(short_dir / "undisturbed")
    training = Training(slurm, short_dir / "work")
    first = training.submit()
    training.wait_for_steps(20)
    slurm("scancel", first)
    slurm.wait_for_state(first, "CANCELLED")
    job = slurm.job(first)
    assert (job["Restarts"], job["JobState"]) == ("0", "CANCELLED")
    said = training.log.read_text()
    assert "The kernel was suspended" in said
    assert "requeued" not in said
    steps = training.steps()
    assert training.submit() != first
    training.wait_for_steps(10)
    assert training.steps() > steps
    assert training.finish() == expected


def test_a_job_that_is_canceled_after_its_preemption_began_stays_canceled(slurm, short_dir):
    training = Training(slurm, short_dir / "work")
    training.submit()
    training.wait_for_steps(10)
    with training.preempting():
        wait_for(lambda: "CANCELLED" in training.log.read_text(), 180, training.said)
        slurm("scancel", training.job_id)
        slurm.wait_for_state(training.job_id, "CANCELLED")
    assert slurm.job(training.job_id)["Restarts"] == "0"


def test_a_job_goes_on_from_the_last_automatic_save_after_its_node_failed(slurm, short_dir):
    expected = undisturbed(short_dir / "undisturbed")
    training = Training(slurm, short_dir / "work")
    training.submit(autosave="1s")
    node = training.node()
    training.wait_for_steps(40)
    slurm.kill_node(node)
    # Slurm notices that the node does not answer.
    wait_for(lambda: training.restarts() == 1, 180, training.said)
    assert training.node() != node
    assert training.finish() == expected


def test_an_error_of_a_cell_ends_the_job_for_good(slurm, short_dir):
    training = Training(slurm, short_dir / "work", last_cell="1 / 0")
    (training.folder / GATE).touch()
    training.submit()
    slurm.wait_for_state(training.job_id, "FAILED")
    assert "ZeroDivisionError" in training.log.read_text()
    assert slurm.job(training.job_id)["Restarts"] == "0"


def test_a_server_in_a_job_comes_back_on_the_other_node_with_its_sessions(slurm, short_dir):
    """The servers of both nodes get the same port, because both nodes have the addresses of this machine."""
    script = short_dir / "slurm-job.sh"
    script.write_text(slurm_script.script(for_server=True))
    server = Server(short_dir, slurm.env)
    # It ends when the job ends.
    server.prefix = ("sbatch", "--wait", f"--output={short_dir}/job.log", str(script))
    server.start()
    job_id = slurm("squeue", "--noheader", "--format=%i").strip()
    training = Training(slurm, short_dir / "work", job_id=job_id)
    page = server.open("work.ipynb")
    assert page.run(f"x = 41\n{PLACE}") == f"{job_id} {training.node()}\n"
    page.close()
    with training.preempted() as node:
        wait_for(lambda: answers(server), 120, training.said)
        (session,) = server.get("api/sessions")
        assert session["kernel"]["id"] == page.kernel_id
        assert session["kernel"]["execution_state"] == "suspended"
        said = server.page(page.kernel_id).run(f"print(x + 1)\n{PLACE}")
        assert said == f"42\n{job_id} {node}\n"
    # A user who shuts the server down ends the job.
    server.stop(None)
    slurm.wait_for_state(job_id, "COMPLETED")


def answers(server):
    """Return whether a server answers."""
    try:
        return server.get("api/status")
    except httpx.TransportError:
        return None
