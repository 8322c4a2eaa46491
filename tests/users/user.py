"""An ordinary user of this machine, as tests see one."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Self

from tests.as_user import ROOT


class Refused(Exception):  # noqa: N818 - what a test expects is no error of it
    """What a user's code raised: `kind` is the name of its class."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind, self.text = kind, text


class User:
    """A user without a right, whose Python runs what a test says. Use as a context manager.

    `mounts_of`: a process whose mounts the user sees; 0: the test's own.
    """

    def __init__(self, uid: int, *, mounts_of: int = 0, **environment: str) -> None:
        self.uid = uid
        self._runtime = Path(f"/tmp/gpuckpt-test-{secrets.token_hex(4)}")
        entered = ["nsenter", f"--target={mounts_of}", "--mount", "--wd=."] if mounts_of else []
        python = [sys.executable, "-m"]
        words = [*entered, *python, "tests.as_user", *python, "tests.users.shell"]
        self._process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={
                **os.environ,
                "GPUCKPT_TEST_USER": str(uid),
                "JUPYTER_GPUCKPT_RUNTIME_DIR": str(self._runtime),
                "JUPYTER_GPUCKPT_IDLE_EXIT": "1",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(180)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self._runtime, ignore_errors=True)

    def run(self, code: str, **values: Any) -> Any:
        """Run code in which the `values` are known, and return what it has assigned to `result`. Raises Refused."""
        given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(given + textwrap.dedent(code)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"], answer["text"], answer["trace"])
        return answer["result"]
