"""One row, tried: a fresh kernel with its tokens beside a twin that is never stopped, and what the row's line tells."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jupyter_gpuckpt.engine.gpu.ferry.ferry import FERRY_FILES
from jupyter_gpuckpt.host import gpu
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.wire.manifest_records import Manifest
from tests.conftest import wait_for
from tests.gpu.matrix import lines
from tests.gpu.matrix.rows import Row
from tests.gpu.matrix.workloads import tokens
from tests.server.conftest import Page, Server

#: An import of a framework from a cold disk, beside others, and a compilation.
CELL_SECONDS = 240
LOOKS = 4
TAIL = 6000
#: Of what one process prints.
MARK = "look "


class Trial:
    """`with Trial(server, row) as trial`: the kernel has its work and its tokens, and the twin has ended. `looks`: of the twin.

    Leaving the block kills the kernel, prints the row's line and keeps it; after an error also what everybody said.
    """

    def __init__(self, server: Server, row: Row, *, looks: int = LOOKS) -> None:
        self.row, self._server = row, server
        self._looks, self._counters = 0, dict[str, float]()
        name = f"{row.name}-{time.monotonic_ns()}"
        self._folder = server.root / name
        self._folder.mkdir()
        self._tell = {
            "workload": row.workload,
            "options": dict(row.options),
            "gpus": row.gpus,
            "seed": random.SystemRandom().getrandbits(30),
            **tokens.new(self._folder / "tokens", row.gpu_bytes),
        }
        self.line = lines.Line(row.name, row.title, row.gpus)
        self._twin_looks = looks
        self.twin: list[dict[str, Any]] = []
        self._failed_operation: dict[str, Any] | None = None

    @property
    def kernel_id(self) -> str:
        return str(self.page.kernel_id)

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _begin(self) -> None:
        self.free_before = gpu.free_bytes()
        # Its work goes on without a pause.
        twin_options = {name: value for name, value in self.row.options.items() if name != "pace"}
        told = json.dumps({**self._tell, "options": twin_options})
        command = [sys.executable, "-m", "workloads.running", str(self._twin_looks), told]
        with self._twin_output.open("wb") as output, self._twin_errors.open("wb") as errors:
            self._twin = subprocess.Popen(
                command,
                cwd=self._server.root,
                env=self._server.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )
        self.page: Page = self._server.open(f"{self.row.name}.ipynb")
        began = time.monotonic()
        self.cell(
            "import json\nfrom workloads.running import Running\n"
            f"running = Running(json.loads({json.dumps(self._tell)!r}))"
        )
        self._wait(lambda: self._twin.poll() is not None)
        assert self._twin.returncode == 0, "the twin failed"
        told_by_twin = self._twin_output.read_text().splitlines()
        self.twin = [
            json.loads(line.removeprefix(MARK)) for line in told_by_twin if line.startswith(MARK)
        ]
        self.line.begin_seconds = round(time.monotonic() - began, 2)

    @property
    def _twin_output(self) -> Path:
        return self._folder / "twin.out"

    @property
    def _twin_errors(self) -> Path:
        return self._folder / "twin.err"

    # Cells.

    def cell(self, code: str) -> str:
        """Return what a cell prints; it must succeed."""
        return self.ended(self.page.execute(code))

    def ended(self, request: str) -> str:
        """Return what a cell has printed when it has succeeded."""
        self._wait(lambda: self._is_over(request))
        reply = next(
            m
            for m in list(self.page.received)
            if m["parent_header"].get("msg_id") == request and m["msg_type"] == "execute_reply"
        )
        content = reply["content"]
        assert content["status"] == "ok", "\n".join(content.get("traceback", [str(content)]))
        return str(self.page.printed(request))

    def _is_over(self, request: str) -> bool:
        seen = {
            m["content"].get("execution_state") or m["msg_type"]
            for m in list(self.page.received)
            if m["parent_header"].get("msg_id") == request
        }
        return {"idle", "execute_reply"} <= seen

    def _wait(self, condition: Callable[[], object]) -> None:
        """Until it is so, or the kernel or the twin has failed."""
        failures: list[str] = []

        def look() -> bool:
            if self._twin.poll():
                failures.append(f"the twin has failed with {self._twin.returncode}")
            states = {m["content"].get("execution_state") for m in list(self.page.received)}
            if states & {"restarting", "dead"}:
                failures.append("the kernel has died")
            return bool(condition() or failures)

        wait_for(look, CELL_SECONDS)
        assert not failures, failures[0]

    # The oracle.

    def check(self) -> None:
        """All three tokens, and what the twin says of the same step."""
        number = self._looks
        told = json.loads(self.cell("print(json.dumps(running.look()))").splitlines()[-1])
        self._check_tokens(told["tokens"])
        assert told["work"] == self.twin[number]["work"]
        for name, value in told["counters"].items():
            assert value > self._counters.get(name, -1), f"{name} stands still"
        self._counters = told["counters"]

    def check_tokens(self) -> None:
        """Check the tokens only."""
        told = self.cell("print(json.dumps(running.tokens.look()))").splitlines()[-1]
        self._check_tokens(json.loads(told))

    def _check_tokens(self, told: dict[str, Any]) -> None:
        assert told == tokens.expected(self._tell, self._looks)
        self._looks += 1

    # Operations.

    def do(self, verb: str) -> dict[str, Any]:
        """Return an operation that succeeds; its seconds go into the line."""
        began = time.monotonic()
        operation = self._server.finish(self._server.begin(verb, self.kernel_id))
        self.line.seconds.setdefault(verb, []).append(round(time.monotonic() - began, 2))
        if operation["state"] != "succeeded":
            self._failed_operation = operation
        assert operation["state"] == "succeeded", f"{verb}: {operation['error']}"
        result: dict[str, Any] = operation["result"]
        self.line.gpu_bytes = max(self.line.gpu_bytes, result["gpu_bytes"])
        if verb in ("save", "suspend"):
            self._note_ferry(result["snapshot_id"])
        return result

    def _note_ferry(self, snapshot_id: str) -> None:
        """Note how much of a snapshot's GPU memory went by the ferry."""
        data = Path(self._server.env["JUPYTER_GPUCKPT_DATA_DIR"])
        [path] = data.rglob(f"{snapshot_id}{manifests.SUFFIX}")
        streams = manifests.read(path, Manifest).streams
        found = sum(one.length for one in streams if one.name.startswith(f"gpu{FERRY_FILES}"))
        self.line.ferry_bytes = max(self.line.ferry_bytes, found)

    def refuse(self, verb: str) -> None:
        """Check that an operation is refused with the row's error."""
        path = f"api/gpuckpt/kernels/{self.kernel_id}/{verb}"
        response = self._server.request("POST", path, ok=False, json={})
        operation = response.json()
        error = operation
        if response.is_success:
            operation = self._server.finish(operation)
            error = operation["error"]
        self._failed_operation = operation
        assert error is not None, f"{verb} succeeded"
        said = f"{error['message']} {error['hint']}"
        assert re.search(self.row.refused, said), f"{verb}: {error}"
        assert error["code"] == self.row.code, f"{verb}: {error}"
        assert self.state() == "running"
        self.line.outcome, self.line.reason = "refused", error["message"]
        self._failed_operation = None

    def state(self) -> str:
        return str(self._server.kernel(self.kernel_id)["state"])

    def snapshots(self) -> list[dict[str, Any]]:
        listed = self._server.get(f"api/gpuckpt/snapshots?kernel_id={self.kernel_id}")
        return list(listed["snapshots"])

    # The end.

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.line.outcome = "fails"
            self.line.reason = (str(error).strip().splitlines() or [repr(error)])[0][:200]
            self._print_everything()
        if self._twin.poll() is None:
            self._twin.kill()
        self._twin.wait()
        lines.keep(self.line)
        if hasattr(self, "page"):
            self._forget(ok=error is None)

    def _forget(self, *, ok: bool) -> None:
        """Make room on the GPU and on the disk."""
        ask = self._server.request
        ask("DELETE", f"api/sessions/{self.page.session_id}", ok=ok)
        self.page.close()
        self._server.pages.remove(self.page)
        for snapshot in self.snapshots():
            ask("DELETE", f"api/gpuckpt/snapshots/{snapshot['snapshot_id']}", ok=ok)

    def _print_everything(self) -> None:
        if self._failed_operation:
            print("---- operation", json.dumps(self._failed_operation, indent=1), sep="\n")
            error = self._failed_operation.get("error") or {}
            print(error.get("details") or "")
        for who, said in self._everything():
            print(f"---- {who}", said[-TAIL:], sep="\n")

    def _everything(self) -> Iterator[tuple[str, str]]:
        if hasattr(self, "page"):
            shown = [
                m["content"].get("text") or "\n".join(m["content"].get("traceback", []))
                for m in list(self.page.received)
                if m["msg_type"] in ("stream", "error")
            ]
            yield "cells", "".join(shown)
        yield "twin", self._twin_output.read_text() + self._twin_errors.read_text()
        data = Path(self._server.env["JUPYTER_GPUCKPT_DATA_DIR"])
        kernel_log = f"kernels/{self.kernel_id}.log" if hasattr(self, "page") else ""
        for name in filter(None, ("gpuckptd.log", kernel_log)):
            path = data / "log" / name
            yield name, path.read_text(errors="replace") if path.exists() else ""
        yield "server", self._server.log()
