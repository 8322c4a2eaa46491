"""The tools as functions for jupyter-server-mcp, which calls them in a Jupyter server: the entry point group `jupyter_server_mcp.tools`.

jupyter-server-mcp listens on localhost without Jupyter's authentication: every user of the machine can call it. So a caller must be a
program of the server's own user on this machine. Tools that change something need the token `c.GpuCkptServer.tools_token` as well; without
that setting there are none. Nothing of mcp or fastmcp is imported before they call.
"""

from __future__ import annotations

import functools
import hmac
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from jupyter_server.serverapp import ServerApp

from ..errors import AccessDenied, ConfigurationError, GpuCkptError
from ..linux.tcp_callers import uid_of_caller
from .backings import Backings, free_bytes
from .running_servers import FoundServer
from .tool_functions import CHANGING, READING, Tools, told

_EXTENSION = "jupyter_gpuckpt"


def listed() -> list[str]:
    """Return the tools of this server as jupyter-server-mcp wants them."""
    names = (*READING, *CHANGING) if _token() else READING
    return [f"{__name__}:{name}" for name in names]


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the tool of this name as a function."""
    if name not in {*READING, *CHANGING}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function(name)


def _function(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(Tools, name))
    async def call(**arguments: object) -> object:
        try:
            _require_caller(changes=name in CHANGING)
            return await getattr(_tools(), name)(**arguments)
        except GpuCkptError as error:
            raise _error_class()(told(error)) from error

    signature = inspect.signature(getattr(Tools, name), eval_str=True)
    own = list(signature.parameters.values())[1:]
    call.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined] # a function's own
    del call.__wrapped__  # else it has the argument `self`
    call.__annotations__ = {one.name: one.annotation for one in own}
    call.__annotations__["return"] = signature.return_annotation
    return call


@functools.cache
def _tools() -> Tools:
    """Return the tools of this server's kernels."""
    app = _server()
    token = app.identity_provider.token or os.environ.get("JUPYTERHUB_API_TOKEN", "")
    if app.sock:
        raise ConfigurationError(
            "The tools do not reach a Jupyter server that listens on a unix socket.",
            hint="Let it listen on a port of localhost.",
        )
    own = FoundServer(app.connection_url, token)
    return Tools(Backings(lambda: [own], with_daemon=False).find, free_bytes)


def _server() -> ServerApp:
    if not ServerApp.initialized():
        raise ConfigurationError(
            "There is no Jupyter server in this process.",
            hint="`jupyter gpuckpt mcp` serves the tools outside of one.",
        )
    return ServerApp.instance()


def _token() -> str:
    """Return the token of the tools that change something; empty if there are none."""
    apps = _server().extension_manager.extension_apps.get(_EXTENSION, ())
    return next((str(app.tools_token) for app in apps if hasattr(app, "tools_token")), "")


def _require_caller(*, changes: bool) -> None:
    """Raise AccessDenied unless the caller is a program of this user on this machine and, if it changes something, has the token."""
    try:
        # It is loaded if a request has come through it.
        request = sys.modules["fastmcp.server.dependencies"].get_http_request()
        caller, own = request.scope["client"], request.scope["server"]
    except (KeyError, RuntimeError):
        caller = own = None
    uid = uid_of_caller(tuple(caller[:2]), tuple(own[:2])) if caller and own else None
    if uid != os.getuid():
        raise AccessDenied(
            "Only programs of the user who runs this Jupyter server may call this tool, from this machine and through jupyter-server-mcp.",
            hint="`jupyter gpuckpt mcp` serves the tools by standard input and output.",
        )
    if not changes:
        return
    token = _token()
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not token or not hmac.compare_digest(given.encode(), token.encode()):
        raise AccessDenied(
            "This tool changes kernels, and the request lacks the token for that.",
            hint="Set c.GpuCkptServer.tools_token, and send it in the header `Authorization: Bearer TOKEN` of the MCP client.",
        )


def _error_class() -> type[Exception]:
    """Return fastmcp's error of tools, whose text reaches the caller in any case."""
    found: type[Exception] = getattr(
        sys.modules.get("fastmcp.exceptions"), "ToolError", RuntimeError
    )
    return found
