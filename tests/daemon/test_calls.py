"""wire.calls.py and the daemon's routes are two ends of one contract."""

import inspect
import re

from jupyter_gpuckpt.daemon.http.daemon_handler import BaseHandler
from jupyter_gpuckpt.daemon.http.kernel_routes import ROUTES
from jupyter_gpuckpt.wire import calls

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")


def every_call():
    for make in vars(calls).values():
        if (
            inspect.isfunction(make)
            and str(inspect.signature(make).return_annotation)[:4] == "Call"
        ):
            required = [
                parameter
                for parameter in inspect.signature(make).parameters.values()
                if parameter.default is parameter.empty
            ]
            yield make(*(f"<{one.name}>" if one.annotation == "str" else None for one in required))


def test_every_call_has_a_route_and_every_route_a_call():
    called = {(re.sub(r"%3C(\w+)%3E", r"{\1}", call.path), call.method) for call in every_call()}
    served = {
        (path, method)
        for path, handler in ROUTES.items()
        for method in METHODS
        if getattr(handler, method.lower()) is not getattr(BaseHandler, method.lower())
    }
    assert called == served
