"""A `dying_daemon.py` whose fetches are checked by processes from their beginning, however small they are.

It can also die as soon as a worker was given a run to check.
"""

import sys
import time

import dying_daemon

from jupyter_gpuckpt.daemon.app import main
from jupyter_gpuckpt.images import worker_messages
from jupyter_gpuckpt.remote import check_client

WORKERS = 2
#: The place at which a worker has been given a run.
GIVEN = "given"

check_client._MIN_BYTES = check_client._MIN_WORKERS = check_client._PROCESSORS = 1
check_client._MAX_WORKERS = WORKERS

enter, send = check_client.CheckingProcesses.__enter__, worker_messages.send


def enter_when_ready(checking):
    """Wait until all workers are ready, as they are where the fork server runs already."""
    enter(checking)
    while len(checking._workers) < checking._count:
        time.sleep(0.01)
    return checking


def send_and_die(connection, message):
    send(connection, message)
    if isinstance(message, check_client.CheckSpan):
        dying_daemon.die_here(GIVEN)


check_client.CheckingProcesses.__enter__ = enter_when_ready
setattr(check_client, "send", send_and_die)  # noqa: B010 - it is what the module imported

if __name__ == "__main__":
    dying_daemon.prepare()
    sys.exit(main())
