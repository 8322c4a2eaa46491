"""The program that an editor starts in place of a kernel: it leaves the work to the relay, and ends when the kernel has ended.

It imports little, because every editor window has one. Its end by a signal means that the editor has gone: the relay keeps the kernel. If
the relay cannot be reached, it becomes the kernel itself, an ordinary one.
"""

from __future__ import annotations

import sys

if sys.path and sys.path[0] in {"", __import__("os").getcwd()}:
    # Modules of the user's folder must not shadow Python's own.
    del sys.path[0]

import json
import os
import signal
import socket
import time

from jupyter_gpuckpt.relay.address import PROTOCOL, spoken_address

#: How long the relay may take to start on a machine under load, and to answer that it has bound the ports.
_START_SECONDS, _ANSWER_SECONDS = 60.0, 60.0
_PAUSE = 0.02


class Unusable(Exception):  # noqa: N818 - not an error: an ordinary kernel is started
    """The relay cannot work for this kernel, for the reason that is the text."""


class StandIn:
    """The connection of an editor's kernel to the relay."""

    def __init__(self, spec_folder: str, connection_file: str) -> None:
        self._spec_folder, self._connection_file = spec_folder, connection_file
        with open(connection_file, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes ten milliseconds
            self._connection = json.load(file)
        with open(f"{spec_folder}/kernel.json", encoding="utf-8") as file:  # noqa: PTH123
            self.kernelspec = json.load(file)["metadata"]["jupyter_gpuckpt"]["kernelspec"]
        self._socket: socket.socket | None = None
        self._session = ""
        self._parent = os.getppid()

    def run(self) -> int:
        """Serve until the kernel has ended; return its exit status. Raises Unusable before the relay has taken over."""
        first = True
        while True:
            try:
                self._connect()
                lines = self._lines()  # type: ignore[no-untyped-call]
            except (OSError, Unusable) as error:
                if first:
                    raise Unusable(str(error)) from error
                time.sleep(_PAUSE)
                continue
            for line in lines:
                first = False
                told = json.loads(line)
                if "unusable" in told:
                    if not self._session:
                        raise Unusable(told["unusable"])
                    # The relay keeps the kernel of this session: no other one may take its place unnoticed.
                    sys.stderr.write(
                        f"The kernel is kept, but cannot be reached: {told['unusable']}.\n"
                    )
                    return 1
                if "say" in told:
                    sys.stderr.write(told["say"] + "\n")
                    sys.stderr.flush()
                if "session" in told:
                    self._session = told["session"]
                if "exit" in told:
                    return int(told["exit"])
            if first:
                raise Unusable("the relay has ended the connection")
            # The relay was killed. The next one goes on with this session.
            time.sleep(_PAUSE)

    def interrupt(self, *_: object) -> None:
        """Ask the relay to interrupt the kernel."""
        if self._socket is not None:
            self._send({"interrupt": True})

    def _connect(self) -> None:
        deadline, is_started = time.monotonic() + _START_SECONDS, False
        while True:
            connected = socket.socket(socket.AF_UNIX)
            try:
                connected.connect(spoken_address())
            except OSError:
                connected.close()
                if time.monotonic() > deadline:
                    raise
                if not is_started:
                    _start_relay()
                    is_started = True
                else:
                    time.sleep(_PAUSE)
            else:
                break
        self._socket = connected
        self._send(
            {
                "protocol": PROTOCOL,
                "connection": self._connection,
                "kernelspec": self.kernelspec,
                "resource_dir": self._spec_folder,
                "session": self._session,
                "environment": dict(os.environ),
                "folder": os.getcwd(),  # noqa: PTH109
                "parent": self._parent,
            }
        )

    def _send(self, told: dict[str, object]) -> None:
        if self._socket is not None:
            try:
                self._socket.sendall(json.dumps(told).encode() + b"\n")
            except OSError:
                return  # the relay has ended; `run` notices that

    def _lines(self):  # type: ignore[no-untyped-def] # noqa: ANN202 - typing takes milliseconds
        data = b""
        while True:
            try:
                piece = self._socket.recv(65536) if self._socket is not None else b""
            except OSError:
                piece = b""
            if not piece:
                return
            *lines, data = (data + piece).split(b"\n")
            yield from lines


def _start_relay() -> None:
    """Start the relay outside of this process's tree, and wait until it listens. Raises Unusable."""
    null = os.open(os.devnull, os.O_RDWR)
    started = os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", "jupyter_gpuckpt.relay"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1)],
        setsid=True,
    )
    os.close(null)
    status = os.waitstatus_to_exitcode(os.waitpid(started, 0)[1])
    if status:
        raise Unusable(f"the relay could not be started (status {status})")


def _become_kernel(kernelspec: dict, connection_file: str, spec_folder: str) -> None:  # type: ignore[type-arg]
    """Replace this process by the kernel."""
    argv = [
        word.replace("{connection_file}", connection_file).replace("{resource_dir}", spec_folder)
        for word in kernelspec["argv"]
    ]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.execvpe(argv[0], argv, {**os.environ, **kernelspec.get("env", {})})  # noqa: S606 - the kernel that the user chose


def main(argv: list[str]) -> int:
    """Run with `--spec FOLDER -f FILE`; return the kernel's exit status."""
    if len(argv) != 4 or argv[0] != "--spec" or argv[2] != "-f":
        sys.stderr.write(
            "Jupyter clients run this program: see `jupyter gpuckpt install-kernel`.\n"
        )
        return 2
    _, spec_folder, _, connection_file = argv
    stand_in = StandIn(spec_folder, connection_file)
    signal.signal(signal.SIGINT, stand_in.interrupt)
    try:
        return stand_in.run()
    except Unusable as error:
        sys.stderr.write(f"This kernel ends with its editor, as an ordinary one: {error}.\n")
        sys.stderr.flush()
    _become_kernel(stand_in.kernelspec, connection_file, spec_folder)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
