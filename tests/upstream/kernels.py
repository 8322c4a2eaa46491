"""jupyter_kernel_test for kernels of several kinds, through a server's websocket, once without the extension and once with it.

Whatever passes without the extension must pass with it. With it each kernel is also saved, suspended and brought back by a cell.
Kernels from PyPI get environments of their own below the cache directory; those of Debian (R) and npm (deno) are left out where they
are not installed.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.jsonutil import extract_dates, json_default

from jupyter_gpuckpt.host import criu_program
from tests.conftest import end_everything_below, environment
from tests.server.conftest import Server
from tests.server.page import Page

from .sdists import cache_dir, unpacked
from .suites import suite_named

_SUITE = suite_named("jupyter_kernel_test")
_PYTHON = {
    "language_name": "python",
    "file_extension": ".py",
    "code_hello_world": "print('hello, world')",
    "code_stderr": "import sys; print('test', file=sys.stderr)",
    "completion_samples": [{"text": "zi", "matches": {"zip"}}],
    "complete_code_samples": ["1", "print('hello, world')"],
    "incomplete_code_samples": ["print('''hello"],
    "invalid_code_samples": ["import = 7q"],
    "code_generate_error": "raise",
    "code_execute_result": [{"code": "1+2+3", "result": "6"}],
    "code_inspect_sample": "zip",
    "code_clear_output": "from IPython.display import clear_output; clear_output()",
}


@dataclass(frozen=True)
class Kind:
    """A kind of kernel: what to install or to find, how it is started, and what jupyter_kernel_test may ask of it."""

    name: str
    samples: dict[str, Any]
    argv: tuple[str, ...]
    packages: tuple[str, ...] = ()
    #: Its version, by `argv[0]`; empty: that of the first package.
    version: tuple[str, ...] = ()

    def program(self) -> str:
        """Return the path of the program that starts the kernel; empty if it is not installed."""
        if not self.packages:
            return shutil.which(self.argv[0]) or ""
        folder = cache_dir() / "kernels" / self.name
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            print(f"== installing {', '.join(self.packages)}", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *self.packages], check=True)
            (folder / "complete").touch()
        return str(python)


KINDS = (
    Kind("ipykernel6", _PYTHON, ("-m", "ipykernel_launcher", "-f", "{file}"), ("ipykernel<7",)),
    Kind("ipykernel7", _PYTHON, ("-m", "ipykernel_launcher", "-f", "{file}"), ("ipykernel>=7",)),
    Kind("xeus-python", _PYTHON, ("-m", "xpython_launcher", "-f", "{file}"), ("xeus-python",)),
    Kind(
        "bash",
        {
            "language_name": "bash",
            "file_extension": ".sh",
            "code_hello_world": "echo hello, world",
            "completion_samples": [{"text": "tou", "matches": {"touch"}}],
        },
        ("-m", "bash_kernel", "-f", "{file}"),
        ("bash_kernel",),
    ),
    Kind(
        "R",
        {
            "language_name": "R",
            "file_extension": ".r",
            "code_hello_world": 'print("hello, world")',
            "completion_samples": [{"text": "zi", "matches": {"zip"}}],
            "complete_code_samples": ["1", "f <- function(x) {x*2}"],
            "incomplete_code_samples": ["print('hello", "f <- function(x) {x"],
            "code_generate_error": "raise",
        },
        ("R", "--slave", "-e", "IRkernel::main()", "--args", "{file}"),
    ),
    Kind(
        "deno",
        {
            "language_name": "typescript",
            "file_extension": ".ts",
            "code_hello_world": "console.log('hello, world')",
            "code_stderr": "console.error('test')",
            "code_generate_error": "throw new Error('x')",
            "code_execute_result": [{"code": "1+2+3", "result": "6"}],
        },
        ("deno", "jupyter", "--kernel", "--conn", "{file}"),
    ),
)


class _Channel:
    """A channel of a kernel, through a page's websocket."""

    def __init__(self, page: Page, name: str) -> None:
        self._page, self._name, self._next = page, name, 0

    def send(self, message: dict[str, Any]) -> None:
        text = json.dumps({**message, "channel": self._name, "buffers": []}, default=json_default)
        self._page._socket.send(text)

    def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        deadline = time.monotonic() + (timeout or 60.0)
        with self._page._new:
            while True:
                while self._next < len(self._page.received):
                    message = self._page.received[self._next]
                    self._next += 1
                    if message["channel"] == self._name:
                        for part in ("header", "parent_header"):
                            message[part] = extract_dates(message[part])
                        return message
                if not self._page._new.wait(max(0.0, deadline - time.monotonic())):
                    raise Empty


class _Client(BlockingKernelClient):
    """jupyter_client's, over a websocket."""

    def over(self, page: Page) -> _Client:
        self._page = page
        self._channels = {name: _Channel(page, name) for name in ("shell", "iopub", "stdin")}
        self.session.session = page.client_id
        return self

    shell_channel = property(lambda self: self._channels["shell"])
    iopub_channel = property(lambda self: self._channels["iopub"])
    stdin_channel = property(lambda self: self._channels["stdin"])

    def stop_channels(self) -> None:
        self._page.close()


class _Tests:
    """What jupyter_kernel_test's class lacks: its kernel is a server's."""

    server: ClassVar[Server]
    extension: ClassVar[bool]

    @classmethod
    def setUpClass(cls) -> None:
        page = cls.server.open("notebook.ipynb", kernel=cls.kernel_name)  # type: ignore[attr-defined]
        page.reply(page.send("kernel_info_request", {}))
        cls.kernel_id = page.kernel_id  # type: ignore[attr-defined]
        cls.kc = _Client().over(page)  # type: ignore[attr-defined]

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kc.stop_channels()  # type: ignore[attr-defined]
        cls.server.request("DELETE", f"api/kernels/{cls.kernel_id}")  # type: ignore[attr-defined]

    def test_it_is_saved_and_comes_back(self) -> None:
        if not self.extension:
            raise unittest.SkipTest("without the extension")
        for verb in ("save", "suspend"):
            self.server.do(verb, self.kernel_id)  # type: ignore[attr-defined]
            self.test_execute_stdout()  # type: ignore[attr-defined]


class _Outcomes(unittest.TextTestResult):
    """Result that knows what became of each test."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's
        super().addSuccess(test)
        self.passed.append(test.id().rpartition(".")[2])


@dataclass
class Comparison:
    """What became of a kind's tests without the extension, and with it: names of those that passed, and what was said of others."""

    kind: str
    passed: dict[bool, set[str]] = field(default_factory=dict)
    said: dict[bool, str] = field(default_factory=dict)

    @property
    def worse(self) -> set[str]:
        """What passes without the extension only; or is ours and fails."""
        ours = {"test_it_is_saved_and_comes_back"}
        return (self.passed[False] | ours) - self.passed[True]


@contextmanager
def _served(kind: Kind, program: str, *, extension: bool) -> Iterator[Server]:
    criu = criu_program.find()
    assert criu is not None
    folder = Path(tempfile.mkdtemp(prefix="gpuckpt-kernels-", dir="/tmp"))
    try:
        env = environment(criu, folder)
        spec = folder / "share" / "kernels" / kind.name.lower()
        spec.mkdir(parents=True)
        words = kind.argv if kind.packages else kind.argv[1:]
        argv = [program, *(word.replace("{file}", "{connection_file}") for word in words)]
        described = {"argv": argv, "display_name": kind.name, "language": kind.name}
        (spec / "kernel.json").write_text(json.dumps(described))
        options = () if extension else ("--ServerApp.jpserver_extensions=jupyter_gpuckpt=False",)
        server = Server(folder, env, *options).start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        end_everything_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def compare(kind: Kind, program: str) -> Comparison:
    """Run a kind's tests in both ways."""
    sys.path.insert(0, str(unpacked(_SUITE)))
    from jupyter_kernel_test import KernelTests  # type: ignore[import-not-found] # noqa: PLC0415

    found = Comparison(kind.name)
    for extension in (False, True):
        with _served(kind, program, extension=extension) as server:
            names = {"kernel_name": kind.name.lower(), "server": server, "extension": extension}
            tests = type(kind.name, (_Tests, KernelTests), {**kind.samples, **names})
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(tests)
            text = io.StringIO()
            result = unittest.TextTestRunner(text, resultclass=_Outcomes).run(suite)
            assert isinstance(result, _Outcomes)
            found.passed[extension], found.said[extension] = set(result.passed), text.getvalue()
    return found


def main(wanted: list[str]) -> int:
    """Compare the kinds that are wanted, all by default; print a table, and what is worse with the extension."""
    worse = False
    for kind in KINDS:
        if wanted and kind.name not in wanted:
            continue
        if not (program := kind.program()):
            print(f"{kind.name:12} is not installed")
            continue
        found = compare(kind, program)
        counts = f"{len(found.passed[False])} tests pass without the extension, {len(found.passed[True])} with it"
        print(f"{kind.name:12} {counts}", flush=True)
        if found.worse:
            worse = True
            print(f"{kind.name:12} WRONG: {', '.join(sorted(found.worse))}\n{found.said[True]}")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
