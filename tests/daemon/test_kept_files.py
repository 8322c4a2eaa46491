"""Files that travel with kernels of a daemon that is killed: they have them as they were, and copies go when nobody has them."""

import os
import signal
import sys

from jupyter_gpuckpt.wire import calls, place
from tests.live_files import entries_below

#: Says again and again what is in a file that it has opened once.
READER = """
import os, sys, time
held = open(sys.argv[1])
while True:
    held.seek(0)
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(held.read())
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    time.sleep(0.01)
"""


def test_a_daemon_that_is_killed_costs_no_kernel_its_files_and_leaves_no_copies(
    client, settings, owner_of, spec, short_dir, eventually
):
    data, told = short_dir / "data.csv", short_dir / "told"
    data.write_text("1,2")

    def said():
        told.unlink(missing_ok=True)
        eventually(told.exists)
        return told.read_text()

    def done(call):
        return client.wait(client.send(call).operation_id)

    def killed():
        pid = client.send(calls.handshake()).pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: place.start_time(pid) is None)

    def copies():
        return [
            path.read_text() for path in entries_below(settings.data) if path.name == "data.csv"
        ]

    with owner_of(client) as owner:
        program = [sys.executable, "-c", READER, str(data), str(told)]
        launch = spec(program, keep_files=[f"{short_dir}/*.csv"])
        kernel_id = client.send(calls.launch(owner.owner_id, launch)).kernel_id
        eventually(told.exists)
        snapshot_id = done(calls.suspend(kernel_id)).snapshot_id
        data.unlink()
        done(calls.resume(kernel_id))
        assert said() == "1,2"
    assert client.send(calls.manifest_summary(snapshot_id))["kept_files"] == [str(data)]
    killed()
    client.send(calls.kernels())
    assert (said(), copies()) == ("1,2", ["1,2"])
    done(calls.suspend(kernel_id))
    killed()
    client.send(calls.kernels())
    assert copies() == []
    done(calls.resume(kernel_id))
    assert (said(), copies()) == ("1,2", ["1,2"])
    assert not data.exists()
