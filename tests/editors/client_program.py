"""Programs of Jupyter clients, each driven by lines of JSON: `client_program.py NAME KERNELSPEC`, with the interpreter of the client.

It starts a kernel as the client does, runs each cell that it is told, and says the outputs as they come.
"""

import json
import os
import queue
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

PATIENCE = 90


def say(**told):
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def show(message):
    """Print the output that a message has; return whether the message ends the cell."""
    kind, content = message["header"]["msg_type"], message["content"]
    if kind == "stream":
        say(event="output", name=content["name"], text=content["text"])
    elif kind in {"execute_result", "display_data"}:
        say(event="output", name=kind, text=content["data"].get("text/plain", ""))
    elif kind == "error":
        say(event="output", name=kind, text=content["ename"])
    return kind == "status" and content["execution_state"] == "idle"


class JupyterClient:
    """jupyter_client's manager and blocking client."""

    def __init__(self, name):
        start = import_module("jupyter_client.manager").start_new_kernel
        self.manager, self.client = start(kernel_name=name)

    def run(self, code):
        self.client.execute_interactive(code, allow_stdin=True, output_hook=show)


class Zed:
    """What Zed's source shows: it runs argv as a child in its own group, without a heartbeat, and kills the child when it drops it."""

    def __init__(self, name):
        client = import_module("jupyter_client")
        write = import_module("jupyter_client.connect").write_connection_file
        file, _ = write(f"zed-{uuid.uuid4().hex}.json", key=uuid.uuid4().hex.encode())
        argv = import_module("jupyter_client.kernelspec").get_kernel_spec(name).argv
        argv = [file if word == "{connection_file}" else word for word in argv]
        assert file in argv, "Zed refuses other forms"
        self.kernel = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        self.client = client.BlockingKernelClient(connection_file=file)
        self.client.load_connection_file()
        self.client.start_channels(hb=False)
        self.client.kernel_info()
        self.client.get_shell_msg(timeout=PATIENCE)

    def run(self, code):
        request = self.client.execute(code, allow_stdin=True)
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == request and show(message):
                return


class QtConsole:
    """The manager and client of qtconsole, in Qt's event loop."""

    def __init__(self, name):
        self.app = import_module("qtpy.QtWidgets").QApplication([])
        self.manager = import_module("qtconsole.manager").QtKernelManager(kernel_name=name)
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.messages = queue.Queue()
        self.client.start_channels()
        self.client.iopub_channel.message_received.connect(self.messages.put)
        self.replies = queue.Queue()
        self.client.shell_channel.message_received.connect(self.replies.put)
        deadline = time.monotonic() + PATIENCE
        while self.replies.empty():
            assert time.monotonic() < deadline, "the kernel does not answer"
            self.client.kernel_info()
            self._serve(lambda: not self.replies.empty(), 1.0)

    def _serve(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            self.app.processEvents()
            time.sleep(0.002)

    def run(self, code):
        request = self.client.execute(code, allow_stdin=True)
        while True:
            self._serve(lambda: not self.messages.empty(), PATIENCE)
            message = self.messages.get_nowait()
            if message["parent_header"].get("msg_id") == request and show(message):
                return


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def served(*module):
    """Start a server as a child in the same process group; return its URL when it answers."""
    port = free_port()
    command = [sys.executable, "-m", *(word.format(port=port) for word in module)]
    with Path("server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(f"{url}/api", timeout=PATIENCE).close()
        except urllib.error.HTTPError:
            return url
        except OSError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
        else:
            return url


class KernelGateway:
    """Kernel gateway 3, its REST interface and a websocket."""

    def __init__(self, name):
        url = served("kernel_gateway", "--KernelGatewayApp.port={port}")
        request = urllib.request.Request(
            f"{url}/api/kernels", json.dumps({"name": name}).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            kernel_id = json.load(response)["id"]
        self.session = uuid.uuid4().hex
        address = (
            url.replace("http", "ws")
            + f"/api/kernels/{kernel_id}/channels?session_id={self.session}"
        )
        self.socket = import_module("websocket").create_connection(address, timeout=PATIENCE)

    def run(self, code):
        request = uuid.uuid4().hex
        header = {"msg_id": request, "msg_type": "execute_request", "session": self.session}
        header |= {"username": "", "version": "5.3", "date": ""}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.socket.send(json.dumps({**message, "channel": "shell", "buffers": []}))
        while True:
            got = json.loads(self.socket.recv())
            if got["parent_header"].get("msg_id") == request and show(got):
                return


class JupyterKernelClient:
    """jupyter-kernel-client at a Jupyter server without our extension."""

    def __init__(self, name):
        url = served(
            "jupyter_server",
            "--ServerApp.port={port}",
            "--IdentityProvider.token=t",
            "--allow-root",
            "--no-browser",
            "--ServerApp.port_retries=0",
        )
        client = import_module("jupyter_kernel_client").JupyterKernelClient
        self.client = client(server_url=url, token="t")
        self.client.start(name=name, path=str(Path.cwd()))

    def run(self, code):
        self.client.execute_interactive(code, allow_stdin=True, output_hook=show, timeout=PATIENCE)


CLIENTS: dict[str, Any] = {
    "jupyter_client": JupyterClient,
    "zed": Zed,
    "qtconsole": QtConsole,
    "kernel_gateway": KernelGateway,
    "jupyter_kernel_client": JupyterKernelClient,
}


def main():
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    client = CLIENTS[sys.argv[1]](sys.argv[2])
    say(event="started")
    for line in sys.stdin:
        client.run(json.loads(line)["code"])
        say(event="done")


if __name__ == "__main__":
    main()
