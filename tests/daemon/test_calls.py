"""wire.calls.py and the daemon's routes are two ends of one contract."""

import pytest

from jupyter_gpuckpt.daemon.http.kernel_routes import ROUTES
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.calls import Route
from jupyter_gpuckpt.wire.protocol import SaveRequest

METHODS = ("get", "post", "put", "delete", "patch")


def test_every_call_has_a_route_and_every_route_a_call():
    called = {(call.path, call.method) for call in vars(calls).values() if isinstance(call, Route)}
    served = {
        (path, method.upper())
        for path, handler in ROUTES.items()
        for method in METHODS
        if method in vars(handler)
    }
    assert len(called) > 40
    assert called == served


def test_a_call_has_the_ids_in_its_path_and_its_request_or_query():
    request = SaveRequest(name="a")
    assert calls.save("k", request) == calls.save("k", name="a")
    assert calls.save("../k").path == "/kernels/..%2Fk/save"
    assert calls.kernel(kernel_id="..").path == "/kernels/%2E%2E"
    assert calls.snapshots("k", deleted=True).params == {"kernel_id": "k", "deleted": "1"}
    assert calls.snapshots(deleted=False).params == {}


def test_a_call_with_a_wrong_argument_is_refused_at_once():
    with pytest.raises(TypeError):
        calls.snapshots(delted=True)
    with pytest.raises(TypeError):
        calls.delete_snapshot("s", True, True)
    with pytest.raises(TypeError):
        calls.save("k", nmae="a")
    with pytest.raises(TypeError):
        calls.kernel("k", "more")
    with pytest.raises(IndexError):
        calls.kernel()
