"""Windows of an editor (`window.py`), driven by tests: each is a process group of its own, which a test can kill as a whole."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue

import psutil

from tests.conftest import PATIENCE, wait_for

PROGRAM = Path(__file__).with_name("window.py")


class Driven:
    """A window. `events` come in order."""

    def __init__(self, env):
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._events = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = 0

    def _read(self):
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def tell(self, verb, **arguments):
        self.process.stdin.write(json.dumps({"do": verb, **arguments}) + "\n")
        self.process.stdin.flush()

    def wait(self, *names):
        """Return the next event of one of these names; others are skipped."""
        while True:
            try:
                event = self._events.get(timeout=PATIENCE)
            except Empty:
                raise AssertionError(f"none of {names} came") from None
            assert event["event"] != "failed", event
            if event["event"] in names:
                return event

    def start(self, spec, path="", **options):
        self.tell("start", spec=str(spec), path=str(path), **options)
        started = self.wait("started")
        self.pid = started["pid"]
        return started

    def run(self, code, **options):
        """Run a cell; return everything it printed on standard output, and all outputs."""
        self.tell("run", code=code, **options)
        return self.result()

    def result(self):
        done = self.wait("done", "ended")
        outputs = [tuple(output) for output in done["outputs"]]
        return "".join(text for name, text in outputs if name == "stdout"), outputs

    def begin(self, code, **options):
        """Run a cell, and return when it has printed something."""
        self.tell("run_beside", code=code, **options)
        return self.wait("output")["text"]

    def kill_all(self):
        """Kill the window and its kernel's program at once, as a crash of the editor does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.close()

    def close(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self._reader.join()
        self.process.stdout.close()


class Desk:
    """An installed kernelspec, windows, and the processes behind them."""

    def __init__(self, env, folder):
        self.env = {**env, "WINDOW_FOLDER": str(folder)}
        self.folder = folder
        self.windows = []
        done = self.command("install-kernel", "--json")
        self.spec = Path(json.loads(done)["folder"])

    def command(self, *arguments):
        told = [sys.executable, "-m", "jupyter_gpuckpt.cli", *arguments]
        done = subprocess.run(told, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def window(self, **others):
        made = Driven({**self.env, **others})
        self.windows.append(made)
        return made

    def notebook(self, name):
        path = self.folder / name
        path.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
        return path

    @property
    def relay_folder(self):
        return Path(self.env["JUPYTER_GPUCKPT_DATA_DIR"], "relay")

    def relay(self):
        """Return the relay's process."""
        found = [process for process in psutil.process_iter() if self._is_relay(process)]
        assert len(found) == 1, found
        return found[0]

    def crash(self, window, path):
        """Kill a window and its kernel's program at once; return when the relay has noticed that."""
        window.kill_all()
        wait_for(lambda: self.record_of(path)["left_at"])

    def kill_relay(self):
        """Kill the relay; return when its sockets are closed, because what is sent to them until then is lost."""
        process = self.relay()
        process.kill()
        # Its first thread may end before others, which hold the sockets.
        folder = Path(f"/proc/{process.pid}/task")
        wait_for(
            lambda: (
                not folder.exists()
                or (process.status() == psutil.STATUS_ZOMBIE and len(os.listdir(folder)) < 2)
            )
        )

    def _is_relay(self, process):
        with suppress(psutil.Error):
            return (
                process.cmdline()[-1:] == ["jupyter_gpuckpt.relay"]
                and process.environ().get("JUPYTER_GPUCKPT_DATA_DIR")
                == self.env["JUPYTER_GPUCKPT_DATA_DIR"]
            )
        return False

    def records(self):
        """Return the records of the kernels that the relay has."""
        found = []
        for path in (self.relay_folder / "sessions").glob("*/session.json"):
            with suppress(OSError):
                found.append(json.loads(path.read_bytes()))
        return found

    def record_of(self, path):
        return next(one for one in self.records() if one["path"] == str(path))

    def close(self):
        for window in self.windows:
            window.close()
        with suppress(AssertionError, psutil.Error):
            self.relay().kill()
