"""A program that calls tools over HTTP with fastmcp's client: `http_agent.py URL TOKEN UID` reads calls as JSON and prints the answers."""

import asyncio
import json
import os
import sys

from fastmcp import Client


async def main(url, token, uid):
    calls = json.load(sys.stdin)
    if uid:
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    async with Client(url, auth=token or None) as client:
        names = [one.name for one in await client.list_tools()]
        answers = []
        for tool, arguments in calls:
            found = await client.call_tool(tool, arguments, raise_on_error=False)
            answers.append([found.is_error, "".join(block.text for block in found.content)])
    print(json.dumps({"tools": names, "answers": answers}))


asyncio.run(main(*sys.argv[1:4]))
