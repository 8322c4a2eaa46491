"""The answer for apps of suspended kernels, which pages reach by this server's proxy (jupyter-server-proxy).

A dashboard, an HTTP server or another app that listened in a suspended kernel is gone with it until the resume. The proxy would answer
with an error 500. Nothing listens on the app's port in its place: another program may want the port meanwhile, for instance the same
notebook in a second kernel.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from jupyter_server.base.handlers import JupyterHandler
from tornado import web
from tornado.escape import xhtml_escape
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule

from ..jupyter_internals import is_finished

if TYPE_CHECKING:
    from ..messages.served_kernel import ServedKernel

#: The interval at which a page that shows the answer is loaded again.
_AGAIN_SECONDS = 10
#: Far more than it takes to connect to a program of this machine, or to be refused.
_CONNECT_SECONDS = 0.1
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="refresh" content="{seconds}"><title>Kernel suspended</title></head>
<body><h1>Kernel suspended</h1><p>{text}</p></body>
</html>
"""


def suspended_app_rule(base_url: str, served: Mapping[str, ServedKernel]) -> Rule:
    """Return the rule for the proxied apps of suspended kernels. It must come before the proxy's own."""
    return Rule(_AppOfSuspended(base_url, served), SuspendedAppHandler)


class _AppOfSuspended(Matcher):
    """A matcher of requests for a port on which a suspended kernel listened, and no other program does now."""

    def __init__(self, base_url: str, served: Mapping[str, ServedKernel]) -> None:
        self._served = served
        hosts = r"(?:(?:localhost|127\.0\.0\.1):)?"
        self._path = re.compile(rf"{re.escape(base_url)}proxy/(?:absolute/)?{hosts}(\d+)(?:/|$)")

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Return the arguments of the handler; None if the request is for something else."""
        found = self._path.match(request.path)
        if found is None:
            return None
        port = int(found[1])
        for served in list(self._served.values()):
            if served.kernel is not None and port in served.kernel.listening:
                return None if _answers(port) else {"target_kwargs": {"name": served.kernel.name}}
        return None


def _answers(port: int) -> bool:
    """Return whether a program listens on a port of this machine."""
    try:
        socket.create_connection(("localhost", port), _CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # a program that accepts nothing at the moment
        return True
    return True


class SuspendedAppHandler(JupyterHandler):
    """A handler that tells users who request an app that its kernel is suspended."""

    #: Pages of an app ask it again and again by themselves.
    _track_activity = False

    def initialize(self, name: str) -> None:
        """Store the name of the kernel's notebook."""
        self._name = name

    def check_xsrf_cookie(self) -> None:
        """Accept any request: none changes anything, and those that an app's page sends have no cookie of Jupyter's."""

    async def prepare(self) -> None:  # type: ignore[override] # as JupyterHandler
        """Answer an authenticated request, whatever its method."""
        await super().prepare()
        if not is_finished(self):
            self._answer()

    @web.authenticated
    def _answer(self) -> None:
        text = (
            f"This app runs in the kernel of {self._name}, which is suspended. "
            "To use the app, resume the kernel: run a cell of the notebook, or select Resume."
        )
        self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
        self.set_header("Retry-After", str(_AGAIN_SECONDS))
        self.set_header("Cache-Control", "no-store")
        if "text/html" in self.request.headers.get("Accept", ""):
            page = _PAGE.format(seconds=_AGAIN_SECONDS, text=xhtml_escape(text))
            self.finish(page)
        else:
            self.set_header("Content-Type", "text/plain; charset=UTF-8")
            self.finish(text + "\n")
