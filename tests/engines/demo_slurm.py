"""A training notebook in a Slurm job is preempted five times between two nodes and ends without a difference: `make demo-slurm`.

Slurm is a real one, with two nodes on this machine, so root runs this. Any difference ends it with an error.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from jupyter_gpuckpt.host import criu_program
from tests.conftest import environment, folder_of_a_daemon
from tests.engines.demo import Steps, demonstrate
from tests.engines.slurm_cluster import SlurmCluster
from tests.engines.slurm_training import STEPS, Training, undisturbed

PREEMPTIONS = 5


def main() -> int:
    """Run the demo; return 0 if nothing was lost."""
    if obstacle := SlurmCluster.obstacle():
        print(f"The demo cannot run: {obstacle}.", file=sys.stderr)
        return 1
    return demonstrate(run)


def run(stack: ExitStack) -> None:
    """Train without Slurm and with it, preempt the job again and again, and compare; then cancel another job."""
    criu = criu_program.find()
    assert criu is not None, "there is no CRIU"
    folder = stack.enter_context(folder_of_a_daemon())
    steps = Steps()
    expected = undisturbed(folder / "undisturbed")
    steps.add("undisturbed training by nbclient", f"{STEPS} losses")
    cluster = SlurmCluster(folder, environment(criu, folder))
    stack.callback(cluster.end)
    cluster.start()
    steps.add("Slurm started", f"{len(cluster.nodes)} nodes on this machine")

    training = Training(cluster, folder / "work")
    training.submit()
    training.wait_for_steps(20)
    steps.add("job submitted", f"{training.steps()} losses on {name(training.node())}")
    for _ in range(PREEMPTIONS):
        before = training.node()
        with training.preempted() as after:
            training.wait_for_steps(20)
        detail = f"continues on {name(after)}, {training.steps()} losses"
        steps.add(f"job preempted on {name(before)}", detail)
    found = training.finish()
    assert found == expected, f"{found}\ninstead of\n{expected}"
    steps.add("job completed", f"all {STEPS} losses and the weights as undisturbed, bit by bit")

    canceled = Training(cluster, folder / "canceled")
    job_id = canceled.submit()
    canceled.wait_for_steps(20)
    cluster("scancel", job_id)
    cluster.wait_for_state(job_id, "CANCELLED")
    assert canceled.restarts() == 0, canceled.said()
    steps.add("another job, scancel", "canceled, and not requeued; its kernel is suspended")
    canceled.submit()
    found = canceled.finish()
    assert found == expected, f"{found}\ninstead of\n{expected}"
    steps.add("the same command in a new job", "continues, and ends as undisturbed")


def name(node: str) -> str:
    """Return a node's name without the number of this process."""
    return node.partition("-")[0]


if __name__ == "__main__":
    sys.exit(main())
