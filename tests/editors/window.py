"""A program that does what an editor's window does with a kernel: VS Code's extension, by the habits that its source shows.

It reads commands as lines of JSON and answers with lines of JSON. Its kernel is a child: own ports, a fresh key, kernel_info until a
reply and a message on iopub have come, code of its own that names the notebook, SIGTERM to the process at the end.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

STARTUP = 'if "__vsc_ipynb_file__" not in globals():\n    __vsc_ipynb_file__ = {path}\n'
PATIENCE = 90


def say(**told):
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


class Window:
    def __init__(self):
        self.process = self.client = self.file = None
        self.path = ""

    def start(self, spec, path="", interrupt="message", folder=None):
        self.spec, self.path, self.folder = spec, path, folder
        kernel = json.loads(Path(spec, "kernel.json").read_text())
        self.file, _ = write_connection_file(
            f"{os.environ['WINDOW_FOLDER']}/k-{uuid.uuid4().hex[:8]}.json",
            key=uuid.uuid4().hex.encode(),
        )
        argv = [word.replace("{connection_file}", self.file) for word in kernel["argv"]]
        began = time.monotonic()
        self.process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, cwd=folder or (Path(path).parent if path else None)
        )
        self.client = BlockingKernelClient(connection_file=self.file)
        self.client.load_connection_file()
        self.client.start_channels(hb=False)
        self.client.allow_stdin = True
        deadline = time.monotonic() + PATIENCE
        replied = published = False
        while not (replied and published):
            assert time.monotonic() < deadline, "the kernel does not answer"
            assert self.process.poll() is None, f"ended: {self.process.poll()}"
            self.client.kernel_info()
            end = time.monotonic() + 0.5
            while time.monotonic() < end and not (replied and published):
                replied = replied or self._message("shell") is not None
                published = published or self._message("iopub") is not None
        if path:
            # VS Code escapes as JSON does.
            self.run(STARTUP.format(path=json.dumps(path)), store_history=False, quiet=True)
        say(event="started", seconds=time.monotonic() - began, pid=self.process.pid)

    def _message(self, channel, timeout=0.02):
        try:
            return getattr(self.client, f"{channel}_channel").get_msg(timeout=timeout)
        except queue.Empty:
            return None

    def run(self, code, store_history=True, quiet=False, name="", input_text=None):
        request = self.client.execute(code, store_history=store_history, allow_stdin=True)
        outputs, reply, idle = [], None, False
        began = time.monotonic()
        while reply is None or not idle:
            if self.process.poll() is not None:
                say(event="ended", code=self.process.poll(), outputs=outputs)
                return
            asked = self._message("stdin", 0.001)
            if asked is not None:
                say(event="asked", prompt=asked["content"]["prompt"])
                if input_text is not None:
                    self.client.input(input_text)
            message = self._message("iopub", 0.01)
            if message is not None and message["parent_header"].get("msg_id") == request:
                kind, content = message["msg_type"], message["content"]
                if kind == "status":
                    idle = idle or content["execution_state"] == "idle"
                elif kind == "stream":
                    outputs.append([content["name"], content["text"]])
                    if not quiet:
                        say(event="output", text=content["text"])
                elif kind in {"execute_result", "display_data"}:
                    outputs.append([kind, content["data"].get("text/plain", "")])
                elif kind == "error":
                    outputs.append([kind, content["ename"]])
            got = self._message("shell", 0.001)
            if got is not None and got["parent_header"].get("msg_id") == request:
                reply = got["content"]
        if not quiet:
            say(
                event="done",
                name=name,
                status=reply["status"],
                outputs=outputs,
                seconds=time.monotonic() - began,
            )

    def interrupt(self):
        self.client.control_channel.send(self.client.session.msg("interrupt_request", {}))

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Do what the extension does: SIGTERM to descendants, then to the process."""
        self.process.terminate()
        self.process.wait(PATIENCE)
        Path(self.file).unlink(missing_ok=True)
        self.client.stop_channels()
        say(event="stopped")

    def restart(self):
        """Start another kernel without waiting for the end of the first one."""
        former, file, client = self.process, self.file, self.client
        former.terminate()
        client.stop_channels()
        self.start(self.spec, self.path, folder=self.folder)
        former.wait(PATIENCE)
        Path(file).unlink(missing_ok=True)

    def shutdown(self, restart=False):
        self.client.shutdown(restart=restart)
        code = self.process.wait(PATIENCE)
        self.client.stop_channels()
        say(event="shut down", code=code)


def main():
    window = Window()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        told = json.loads(line)
        verb = told.pop("do")
        if verb == "run_beside":
            threading.Thread(target=window.run, kwargs=told, daemon=True).start()
            continue
        try:
            getattr(window, verb)(**told)
        except Exception as error:
            say(event="failed", error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
