"""A server extension whose handler talks to a kernel as other extensions do: by a client of the kernel's manager."""

import json

from jupyter_server.base.handlers import APIHandler
from tornado import web

#: The clients that are used for the next request, too, by kernel.
KEPT = {}


class ClientHandler(APIHandler):
    """Makes a client, sends what the query names, and answers with the reply and what the kernel printed."""

    @web.authenticated
    async def get(self, kernel_id):
        keeps = self.get_query_argument("keeps", "")
        client = KEPT.pop(kernel_id, None)
        if client is None:
            client = self.kernel_manager.get_kernel(kernel_id).client()
            client.start_channels()
        try:
            self.finish(json.dumps(await self.ask(client), default=str))
        finally:
            if keeps:
                KEPT[kernel_id] = client
            else:
                client.stop_channels()

    async def ask(self, client):
        code, kind = self.get_query_argument("code", ""), self.get_query_argument("kind", "")
        seconds = float(self.get_query_argument("seconds", "60"))
        if kind:
            message = client.session.msg(kind, {})
            client.control_channel.send(message)
            reply = await client.get_control_msg(timeout=seconds)
            assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]
            return {"reply": reply}
        await client.wait_for_ready(timeout=seconds)
        printed = []

        def hook(message):
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = await client.execute_interactive(
            code, output_hook=hook, stdin_hook=lambda asked: client.input("typed"), timeout=seconds
        )
        return {"reply": reply, "printed": "".join(printed)}


def _load_jupyter_server_extension(serverapp):
    path = f"{serverapp.base_url}tests/client/([^/]+)"
    serverapp.web_app.add_handlers(".*", [(path, ClientHandler)])


def _jupyter_server_extension_points():
    return [{"module": "tests.server.in_server_clients"}]
