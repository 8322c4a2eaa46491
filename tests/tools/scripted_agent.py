"""A scripted MCP client of `jupyter gpuckpt mcp`, with the installed mcp: its first or its second major version."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client


class ToolFailed(Exception):  # noqa: N818 - it is what the agent reads
    """A tool's error, as the agent gets it."""


class Agent:
    """A client of the tools. `told`: what the tools told of their progress."""

    def __init__(self, session):
        self._session, self.told = session, []

    async def call(self, tool, **arguments):
        """Call a tool and return its answer; raise ToolFailed with the text of an error."""

        async def progress(_, __, message):
            self.told.append(message)

        result = await self._session.call_tool(tool, arguments, progress_callback=progress)
        text = "".join(block.text for block in result.content)
        failed = result.isError if hasattr(result, "isError") else result.is_error
        if failed:
            raise ToolFailed(text)
        self.last_size = len(text)
        return json.loads(text)

    async def cancel(self, running):
        """Cancel the task of the last call."""
        last = getattr(self._session, "_request_id", None)
        if last is not None:  # mcp 1: the second version tells the server by itself
            params = types.CancelledNotificationParams(requestId=last - 1)
            told = types.CancelledNotification(method="notifications/cancelled", params=params)
            await self._session.send_notification(types.ClientNotification(told))
        running.cancel()
        await asyncio.wait({running})

    async def tools(self):
        """Return the tools by name."""
        return {one.name: one for one in (await self._session.list_tools()).tools}


@asynccontextmanager
async def agent(env, *options, errlog=sys.stderr):
    """Start the MCP server in an environment, and yield an agent that is connected to it."""
    arguments = ["-m", "jupyter_gpuckpt.cli", "mcp", *options]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=env)
    async with stdio_client(server, errlog) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        yield Agent(session)
