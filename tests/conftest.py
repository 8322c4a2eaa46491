"""What every test may ask for: a working engine, directories of its own, a daemon of its own. Real parts only."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import shutil
import signal
import tempfile
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from jupyter_gpuckpt.engine.criu import cache as criu_cache
from jupyter_gpuckpt.engine.settings import INIT, EngineSettings
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.host import criu_program, privileges, processes
from tests import ordinary_user
from tests.live_files import entries_below

#: Files that take longest, mostly by waiting: begun last they would go on alone when all others are done.
LONGEST = (
    "tests/test_ordinary_user.py",
    "tests/engines/",
    "tests/upstream/",
    "tests/daemon/test_silent_remotes.py",
    "tests/test_linters.py",
    "tests/browser/",
    "tests/server/test_end_to_end.py",
    "tests/server/test_culling.py",
)

#: Folders that one worker runs as a whole: the tests of the page share a server and a browser, those of engines lock a cache of
#: containers for as long as the worker lives, and those of containers take most of the machine.
WHOLE_FOLDERS = ("tests/browser/", "tests/containers/", "tests/engines/")

#: Files whose tests take long and share nothing: any worker may run any of them.
SPLIT_FILES = ("tests/test_linters.py", "tests/test_ordinary_user.py")

#: Runs tests as an ordinary user.
THE_USERS = Path(__file__).with_name("test_ordinary_user.py")

#: How many failures that did not repeat a run may have (`make test` runs a failed test once more): on two cores that six
#: workers share, some come from the machine. More are a defect of the product or of its tests.
MOST_RERUNS = 5

#: Of each log in the report of a failed test.
_SHOWN_CHARACTERS = 6000


#: How long kernels may take to end after the last test.
_END_SECONDS = 30.0
#: Why a run fails in which every test passed.
_FAULTS = pytest.StashKey[list[str]]()

#: What a condition returns.
Value = TypeVar("Value")

#: Seconds after which what has not happened is a failure: an overloaded machine may stand still for half a minute.
PATIENCE = 120.0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch garbage collection off while tests are collected, and exclude the objects that exist then from it afterwards.

    A collection in a forked child would copy all their memory.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and mix the others: those of a folder wait, or compute, at the same time.

    The order is the same in every run. In root's run of the suite, what an ordinary user runs in it is a slow test for root: all
    tests of daemons, servers and commands are root's. The user's run does not know which tests `-k` chooses.
    """
    has_users = any(item.path == THE_USERS for item in items)
    if os.geteuid() == 0 and has_users and not config.option.keyword:
        for item in ordinary_user.in_a_part(items):
            item.add_marker(pytest.mark.slow)

    def rank(item: pytest.Item) -> tuple[bool, int]:
        return not item.nodeid.startswith(LONGEST), zlib.crc32(_unit(item.nodeid).encode())

    items.sort(key=rank)


def _unit(nodeid: str) -> str:
    """Return the file of a test, its folder, if the tests there share a server, a browser or containers, or the test alone.

    One worker runs all tests of a unit, and is given the next unit long before the end of a long one.
    """
    if nodeid.startswith(SPLIT_FILES):
        return nodeid
    return next(filter(nodeid.startswith, WHOLE_FOLDERS), nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each worker whole units, where files are asked for."""
    if config.getvalue("dist") != "loadfile":
        return None
    loadfile = importlib.import_module("xdist.scheduler").LoadFileScheduling

    class UnitScheduling(loadfile):  # type: ignore[misc, valid-type]
        """A scheduler that keeps a unit on one worker."""

        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    return UnitScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each worker which process began the run: what workers share ends with that one."""
    node.workerinput["run_pid"] = os.getpid()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which too many tests were run again, or that left kernels running."""
    if hasattr(session.config, "workerinput"):  # only the process that began the run checks
        return
    faults = _left_running(session.config)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = len(reporter.stats.get("rerun", [])) if reporter is not None else 0
    if again > MOST_RERUNS:
        faults.append(f"{again} tests were run again; {MOST_RERUNS} are allowed.")
    session.config.stash[_FAULTS] = faults
    if faults and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the reasons for which a run fails although every test passed."""
    for fault in config.stash.get(_FAULTS, []):
        terminalreporter.write_line(fault)


def _left_running(config: pytest.Config) -> list[str]:
    """Return a line for each kernel that this run started and did not end. Kernels that are just being killed are waited for."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    folder = factory._basetemp  # not by a call, which would make one
    deadline = time.monotonic() + _END_SECONDS
    while True:
        inits = [pid for pid in processes.every() if _is_left(pid, folder)]
        if not inits or time.monotonic() > deadline:
            return [f"left running: {_described(init)}" for init in inits]
        time.sleep(0.2)


def _is_left(init: int, folder: Path | None) -> bool:
    """Return whether a process is the init of a kernel of this run: its files are below `folder`, or were removed with a test's own."""
    arguments = processes.arguments(init)
    if not arguments or Path(arguments[0]).name != INIT.name:
        return False
    files = [Path(argument) for argument in arguments[2:4] if argument.startswith("/")]
    try:
        return any(folder in file.parents or not file.parent.exists() for file in files)
    except PermissionError:  # another user's
        return False


def _described(init: int) -> str:
    programs = [processes.name(pid) for pid in processes.descendants(init)]
    return f"process {init} {processes.arguments(init)[1:4]}, with {programs}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the logs of a failed test's servers and daemons to its report, and the details of its error."""
    report = yield
    if report.failed:
        if call.excinfo and isinstance(error := call.excinfo.value, GpuCkptError):
            report.sections.append(("hint and details", f"{error.hint}\n{error.details}"))
        for path in _logs(getattr(item, "funcargs", {}).values()):
            with suppress(OSError):
                text = path.read_text(errors="replace")[-_SHOWN_CHARACTERS:]
                report.sections.append((f"{path}", text))
    return report


def _logs(fixtures: Iterable[object]) -> list[Path]:
    """Find the logs in the directories that fixtures stand for: a path, an environment, a server."""
    found = set[Path]()
    for fixture in fixtures:
        environment = getattr(fixture, "env", fixture)
        folders = [fixture] if isinstance(fixture, Path) else []
        if isinstance(environment, dict) and "JUPYTER_GPUCKPT_DATA_DIR" in environment:
            folders.append(Path(environment["JUPYTER_GPUCKPT_DATA_DIR"]).parent)
        for folder in folders:
            found |= {p for p in entries_below(folder) if p.suffix == ".log" and p.is_file()}
        if isinstance(log := getattr(fixture, "log_path", None), Path):
            found.add(log)
    return sorted(found)


def required(what: str) -> bool:
    """Whether a missing part fails instead of skipping: GPUCKPT_REQUIRE=criu,browser (set by `make test`)."""
    return what in os.environ.get("GPUCKPT_REQUIRE", "").split(",")


def missing(what: str, reason: str) -> None:
    """Skip the test, or fail it where `what` is required."""
    if required(what):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def only_for_root(what: str) -> None:
    """Skip the test for an ordinary user, also where `what` is required: nothing that could be installed would let it run."""
    if os.geteuid():
        pytest.skip(f"{what} take root")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Restore the default handling of SIGINT and SIGHUP.

    A shell starts background processes with SIGINT ignored, nohup with SIGHUP, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # exec makes the default of it


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves the environment or the working directory changed: later tests of the process would fail or pass for it.

    `monkeypatch.delenv(name, raising=False)`, for instance, restores nothing if the variable was not set.
    """
    variables, folder = _variables(), Path.cwd()
    yield
    left, where = _variables(), Path.cwd()
    os.chdir(folder)
    for name in {**variables, **left}:
        if name not in variables:
            del os.environ[name]
        elif left.get(name) != variables[name]:
            os.environ[name] = variables[name]
    changed = [name for name in {**variables, **left} if left.get(name) != variables.get(name)]
    assert not changed, f"the test left these variables changed: {', '.join(sorted(changed))}"
    assert where == folder, f"the test left {where} as the working directory"


def _variables() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.fixture(scope="session")
def criu() -> Path:
    """Return a CRIU that works, and the rights that it needs."""
    found = criu_program.find()
    if found is None:
        missing("criu", "no CRIU >= 4.2 was found: run tools/install-criu")
    if not INIT.exists():
        missing("criu", "gpuckpt-init is not built: run python3 hatch_build.py")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def subreaper() -> None:
    """Orphans become ours, as they become the daemon's: inits are reaped by us and not, some time, by PID 1."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Yield a directory with a short path: a unix socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="gpuckpt-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def engine(criu: Path, subreaper: None, tmp_path: Path) -> EngineSettings:
    """Return settings of the engine with two threads and a spill directory of the test's own."""
    return EngineSettings(
        criu=criu,
        spill_dir=tmp_path / "spill",
        threads=2,
        user_namespace=not privileges.suffice(),
        checked_share=1.0,
    )


@pytest.fixture
def daemon_env(criu: Path, short_dir: Path) -> Iterator[dict[str, str]]:
    """Yield an environment whose clients start a daemon of their own; everything it started is ended afterwards."""
    yield environment(criu, short_dir)
    end_everything_below(short_dir)


@pytest.fixture(scope="session")
def session_daemon_env(criu: Path) -> Iterator[dict[str, str]]:
    """Yield the same for all tests that share a server."""
    with folder_of_a_daemon() as folder:
        yield environment(criu, folder)


@pytest.fixture(scope="module")
def module_daemon_env(criu: Path) -> Iterator[dict[str, str]]:
    """Yield the same for all tests of a module that do not get into each other's way."""
    with folder_of_a_daemon() as folder:
        yield environment(criu, folder)


@contextmanager
def folder_of_a_daemon() -> Iterator[Path]:
    """Yield a directory with a short path; everything that was started for it is ended afterwards."""
    with tempfile.TemporaryDirectory(
        prefix="gpuckpt-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)
        end_everything_below(Path(folder))


def environment(criu: Path, folder: Path) -> dict[str, str]:
    """Return this process's environment with every folder replaced by one below `folder`."""
    return {
        **os.environ,
        "JUPYTER_GPUCKPT_RUNTIME_DIR": str(folder / "run"),
        "JUPYTER_GPUCKPT_DATA_DIR": str(folder / "data"),
        "JUPYTER_GPUCKPT_CRIU": str(criu),
        "JUPYTER_GPUCKPT_IDLE_EXIT": "60",
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "share"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
    }


def end_everything_below(directory: Path) -> None:
    """Kill the daemon and the inits that were started for this directory: they name it in environment or arguments.

    A daemon that is killed may have just started others.
    """
    wait_for(lambda: not any(map(_killed, processes_naming(directory))))


def _killed(pid: int) -> bool:
    """Send SIGKILL; return whether there was such a process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def processes_naming(directory: Path) -> list[int]:
    """Other processes that have this directory in their environment or arguments.

    Every test of a daemon asks, and a machine with many workers has hundreds of processes: paths and files without objects of
    Python's take a third of the time.
    """
    marker, found = str(directory).encode(), list[int]()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            text = _content(f"/proc/{name}/cmdline") + _content(f"/proc/{name}/environ")
        except OSError:
            continue
        pid = int(name)
        if marker in text and pid != os.getpid() and processes.state(pid) not in (None, "Z"):
            found.append(pid)
    return found


def _content(path: str) -> bytes:
    descriptor, content = os.open(path, os.O_RDONLY), b""
    try:
        while piece := os.read(descriptor, 1 << 16):
            content += piece
    finally:
        os.close(descriptor)
    return content


def left_in(folder: Path) -> set[str]:
    """Return the names in a spill directory without that of CRIU's cache, which stays."""
    return {path.name for path in folder.glob("*")} - {criu_cache.NAME}


def wait_for(
    condition: Callable[[], Value],
    seconds: float = PATIENCE,
    said: Callable[[], str] = lambda: "",
) -> Value:
    """Wait until `condition` is true and return its value; fails the test after `seconds`, with what was `said` meanwhile.

    It asks every 10 ms at first, so that a state that soon passes is met, and less often later; and it pauses three times as
    long as an answer has taken: many conditions are requests or commands, which take the processor from what is waited for.
    """
    begun = asked = time.monotonic()
    while not (value := condition()):
        answered = time.monotonic()
        waited, took = answered - begun, answered - asked
        if waited > seconds:
            pytest.fail(f"did not come true within {seconds} s: {condition} {said()}")
        time.sleep(max(min(0.01 + waited / 50, 0.1), min(3 * took, 0.5)))
        asked = time.monotonic()
    return value
