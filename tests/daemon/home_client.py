"""A client on a machine of its own, which shares its home with others; see `test_shared_homes.py`.

python -m tests.daemon.home_client ROOT      does what each line of its input says, and answers with a line of JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.protocol import Operation, OwnerKind


def main() -> None:
    """Be a server as far as the daemon is concerned."""
    with Client.connect() as client:
        owner = this_owner(OwnerKind.SERVER, root_dir=sys.argv[1])
        with client.hold(owner, lambda event: None):
            for line in sys.stdin:
                try:
                    done = do(client, owner.owner_id, *line.split())
                except GpuCkptError as error:
                    done = {"error": error.code, "message": f"{error.message} {error.hint}"}
                print(json.dumps(done), flush=True)


def do(client: Client, owner_id: str, verb: str, kernel_id: str = "", *argv: str) -> Any:
    """Do one thing."""
    if verb == "launch":
        spec = LaunchSpec(kernel_id, list(argv), {}, "/tmp", f"{sys.argv[1]}/log")
        return client.send(calls.launch(owner_id, spec)).state
    if verb in {"suspend", "resume"}:
        began: Operation = client.send(getattr(calls, verb)(kernel_id))
        return client.wait(began.operation_id).snapshot_id
    if verb == "claim":
        return [one.kernel.kernel_id for one in client.send(calls.claim(owner_id))]
    if verb == "leave":
        return client.send(calls.leave(owner_id))
    if verb == "kernels":
        return {one.kernel_id: one.state for one in client.send(calls.kernels())}
    return [one.snapshot_id for one in client.send(calls.snapshots())]


if __name__ == "__main__":
    main()
