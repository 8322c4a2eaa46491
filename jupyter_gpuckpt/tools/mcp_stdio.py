"""The tools over MCP by standard input and output: `jupyter gpuckpt mcp`. It works with the first and the second major version of mcp."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from ..client import starting
from ..errors import GpuCkptError, ToolMissing, record_of
from .backings import Backings, free_bytes
from .running_servers import FoundServer, running_servers
from .tool_functions import CHANGING, READING, Limits, Tools, told
from .tool_progress import TELL

_log = logging.getLogger(__name__)
_NAME = "jupyter-gpuckpt"
_INSTRUCTIONS = """\
Tools for the kernels (sessions) of Jupyter notebooks on this machine, with all their variables and GPU memory. Save before something risky,
restore to go back, branch or try_each to try several ways from one state without touching the original, keep_branch to go on with the best.
Files on the disk are not part of a saved state.
"""


def serve(server: FoundServer | None, limits: Limits, *, reads_only: bool) -> None:
    """Serve the tools until standard input ends. `server`: the only one whose kernels they reach; None: all of this user's."""
    starting.require_outside()
    make, error_class, context_class = _sdk()
    asyncio.run(_serve(make, error_class, context_class, server, limits, reads_only=reads_only))


async def _serve(
    make: Callable[..., Any],
    error_class: type[Exception],
    context_class: type,
    server: FoundServer | None,
    limits: Limits,
    *,
    reads_only: bool,
) -> None:
    one = (server,) if server else None
    backings = Backings(lambda: one or running_servers(), with_daemon=one is None)
    tools = Tools(backings.find, free_bytes, limits)
    names = READING if reads_only else (*READING, *CHANGING)
    served = make(_NAME, instructions=_INSTRUCTIONS, log_level="WARNING")
    for function in _wrapped(tools, names, error_class, context_class):
        served.add_tool(function, structured_output=False)
    try:
        await served.run_stdio_async()
    finally:
        await backings.close()


def _sdk() -> tuple[Callable[..., Any], type[Exception], type]:
    """Return the class of servers, that of a tool's errors, and that of contexts, of the installed mcp. Raises ToolMissing."""
    for module, name in (("mcp.server.mcpserver", "MCPServer"), ("mcp.server.fastmcp", "FastMCP")):
        try:
            found = import_module(module)
            error = import_module(f"{module}.exceptions").ToolError
        except ImportError:
            continue
        return getattr(found, name), error, found.Context
    raise ToolMissing(
        "The package mcp is not installed, or it is too old.",
        hint="pip install 'jupyter-gpuckpt[mcp]'",
    )


def _wrapped(
    tools: Tools, names: Iterable[str], error_class: type[Exception], context_class: type
) -> Iterable[Callable[..., Any]]:
    """Yield the tools as functions for mcp: with a context, by which they tell their progress, and with mcp's own error."""
    for name in names:
        yield _with_context(getattr(tools, name), error_class, context_class)


def _with_context(
    tool: Callable[..., Any], error_class: type[Exception], context_class: type
) -> Callable[..., Any]:
    @functools.wraps(tool)
    async def call(*, context: Any, **arguments: object) -> object:  # noqa: ANN401 - mcp's own
        steps = 0

        async def tell(text: str) -> None:
            nonlocal steps
            steps += 1
            await context.report_progress(steps, message=text)

        TELL.set(tell)
        try:
            return await tool(**arguments)
        except GpuCkptError as error:
            raise error_class(told(error)) from error
        except Exception as error:
            _log.exception("a tool failed")
            record = record_of(error)
            raise error_class(f"{record.message} {record.hint}") from error

    signature = inspect.signature(tool, eval_str=True)
    extra = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=context_class)
    given = [one.replace(kind=one.KEYWORD_ONLY) for one in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=[*given, extra])  # type: ignore[attr-defined] # a function's own
    call.__annotations__ = {one.name: one.annotation for one in (*given, extra)}
    call.__annotations__["return"] = signature.return_annotation
    return call
