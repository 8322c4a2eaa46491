"""A server that comes back at any moment of an operation gets all that it needs to talk to the kernel."""

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import OperationState
from tests.daemon.test_crashes_at_every_step import GPU_STAGES, STAGES, dying

__all__ = ["dying"]


def has_ended(client, operation):
    state = client.send(calls.operation(operation.operation_id)).state
    return "" if state is OperationState.RUNNING else "ended"


@pytest.mark.parametrize("verb", STAGES)
def test_a_server_gets_the_key_of_its_kernel_whenever_it_comes(
    verb, dying, settings, owner_of, spec, counts, eventually
):
    with Client.connect(settings) as client:
        with owner_of(client) as first:
            kernel = client.send(calls.launch(first.owner_id, spec(secrets={"key": "signature"})))
            eventually(lambda: counts(kernel.kernel_id), 60)
            if verb == "resume":
                client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
            client.send(calls.leave(first.owner_id))
        dying.hold()
        operation = client.send(getattr(calls, verb)(kernel.kernel_id))
        passed = set()
        while eventually(lambda: dying.held() or has_ended(client, operation), 60) != "ended":
            with owner_of(client) as heir:
                [claimed] = client.send(calls.claim(heir.owner_id))
                assert claimed.secrets == {"key": "signature"}, dying.held()
                client.send(calls.leave(heir.owner_id))
            passed.add(dying.held())
            dying.go_on()
        assert (
            client.send(calls.operation(operation.operation_id)).state is OperationState.SUCCEEDED
        )
        assert {str(stage) for stage in STAGES[verb]} - GPU_STAGES <= passed
