"""The trial of the engine on this machine: real refusals by Linux, found before a kernel is started, reported with its fix."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from errno import ENOLCK, EPERM
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpuckpt.daemon import host_report
from jupyter_gpuckpt.host import doctor_remedies, privileges
from jupyter_gpuckpt.snapshots import trial
from jupyter_gpuckpt.store.damage import note_damaged
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.daemon_settings import Settings
from tests.conftest import processes_naming, wait_for
from tests.filters import NO_SUCH_CALL, refuse

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="starts programs with fewer rights")

not_filtered = pytest.mark.skipif(
    privileges.seccomp_filters() > 0, reason="a seccomp filter is in force here"
)

REPORT = """
import sys, msgspec
from jupyter_gpuckpt.wire import daemon_settings
from jupyter_gpuckpt.daemon import host_report, lifetime
lifetime.become_parent_of_orphans()
settings = daemon_settings.from_json(sys.argv[1])
found = host_report.report(settings, host_report.find_criu(settings), fresh=sys.argv[2] == "fresh")
sys.stdout.write(msgspec.json.encode(found).decode())
"""
_FLOCK, _GETSOCKOPT, _KCMP, _PTRACE = 73, 55, 312, 101
_SOL_IP, _IP_FREEBIND = 0, 15


@pytest.fixture
def report(criu: Path, short_dir: Path) -> Callable[..., dict[str, Any]]:
    """Return the report of a process that is started with `prefix`, after `before` ran in it."""

    def ask(
        *prefix: str,
        before: Callable[[], None] | None = None,
        how: str = "fresh",
        data: str = str(short_dir / "data"),
        program: Path = criu,
    ) -> dict[str, Any]:
        settings = Settings(data_dir=data, criu=str(program))
        text = msgspec.json.encode(settings).decode()
        done = subprocess.run(
            [*prefix, sys.executable, "-c", REPORT, text, how],
            capture_output=True,
            env=os.environ | {"XDG_CACHE_HOME": str(short_dir / "cache")},
            preexec_fn=before,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, Any] = json.loads(done.stdout)
        found["by_name"] = {check["name"]: check for check in found["checks"]}
        return found

    return ask


def test_a_small_program_is_suspended_and_resumed_and_nothing_is_left(report, short_dir):
    found = report()
    assert found["engine_available"]
    for step in ("namespaces", "system calls", "suspend", "resume"):
        assert found["by_name"][step]["ok"] is True
    assert list((short_dir / "data").glob("trial-*")) == []
    wait_for(lambda: processes_naming(short_dir) == [])


@not_filtered
def test_a_success_is_remembered_for_the_same_rights_only(report, short_dir):
    assert "resume" in report(how="remembered")["by_name"]
    again = report(how="remembered", data=str(short_dir / "other"))
    assert again["engine_available"]
    assert "resume" not in again["by_name"]
    assert "resume" in report()["by_name"]
    assert "resume" in report("prlimit", "--nofile=4000:4000", how="remembered")["by_name"]


def test_under_a_filter_nothing_is_remembered(report):
    """It may be another one at the next start."""
    for _ in range(2):
        found = report(how="remembered", before=lambda: refuse(NO_SUCH_CALL, EPERM))
        assert found["by_name"]["resume"]["ok"] is True


def test_a_failure_is_not_remembered(report):
    assert not report(how="remembered", before=lambda: refuse(_KCMP, EPERM))["engine_available"]
    assert report(how="remembered")["engine_available"]


@not_filtered
def test_what_every_kernel_holds_is_tried(report):
    """A CRIU that fails at TCP sockets only, as 4.1.1 does on a new Linux, is named before it has cost a kernel."""
    found = report(before=lambda: refuse(_GETSOCKOPT, EPERM, {1: _SOL_IP, 2: _IP_FREEBIND}))
    assert not found["engine_available"]
    assert "could not be suspended: CRIU failed at a socket" in found["reason"]
    assert found["by_name"]["system calls"]["ok"] is True


@pytest.mark.parametrize(
    ("line", "instead", "cause"),
    [
        ("import zmq", "import no_zmq", "could not be started: It ended (ModuleNotFoundError"),
        ("status = ", "client.close(); status = ", "resumed: It ended with status 79 (Socket"),
    ],
)
def test_what_the_program_itself_finds_is_named(
    engine, short_dir, monkeypatch, line, instead, cause
):
    monkeypatch.setattr(trial, "_PROGRAM", trial._PROGRAM.replace(line, instead, 1))
    *_, failed = trial.checks(engine, short_dir)
    assert failed.ok is False
    assert cause in failed.message


def test_a_criu_that_hangs_is_named_before_a_client_has_waited_for_too_long(report, short_dir):
    hanging = short_dir / "criu"
    hanging.write_text("#!/bin/sh\n[ $1 = --version ] && echo Version: 4.2 && exit\nsleep 1000\n")
    hanging.chmod(0o755)
    found = report(program=hanging)
    assert not found["engine_available"]
    assert "could not be suspended" in found["reason"]
    # Twice, for the program and for CRIU; a slow machine may need more than the limits.
    assert 2 * max(trial._SECONDS, trial._STALL_SECONDS) < calls.ANSWER_SECONDS
    wait_for(lambda: processes_naming(short_dir) == [])


@pytest.mark.parametrize(("call", "name"), [(_KCMP, "kcmp"), (_PTRACE, "ptrace")])
def test_a_refused_system_call_is_named_with_its_cause(report, call, name):
    found = report(before=lambda: refuse(call, EPERM))
    assert not found["engine_available"]
    assert f"{name} (EPERM)" in found["reason"]
    assert "seccomp filter" in found["reason"]
    assert found["by_name"]["system calls"]["fix"] in {
        *doctor_remedies.CONTAINER.values(),
        doctor_remedies.UNRESTRICTED,
    }


def test_a_folder_whose_files_cannot_be_locked_is_named(report, short_dir):
    found = report(before=lambda: refuse(_FLOCK, ENOLCK))
    assert not found["engine_available"]
    assert "cannot be locked (flock: No locks available)" in found["reason"]
    assert str(short_dir) in found["reason"]
    assert "JUPYTER_GPUCKPT_DATA_DIR" in found["hint"]


@needs_root
def test_an_ordinary_user_is_told_that_it_works(report):
    found = report(sys.executable, "-m", "tests.as_user", data="~/data")
    assert found["engine_available"], found["reason"]
    assert "works as an ordinary user" in found["by_name"]["resume"]["message"]
    assert "a user namespace" in found["by_name"]["namespaces"]["message"]


@needs_root
def test_root_without_a_capability_does_without(report):
    found = report("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
    assert found["engine_available"], found["reason"]
    assert "a user namespace" in found["by_name"]["namespaces"]["message"]


@needs_root
@pytest.mark.parametrize("limit", [0, 1])
def test_where_no_more_user_namespaces_can_be_made_the_limit_is_named(report, limit):
    """In a user namespace of its own the limit can be changed without touching the machine's."""
    no_rights = 'setpriv --bounding-set=-all --inh-caps=-all "$@"'
    taken = "unshare --user sleep inf >/dev/null 2>&1 &"
    made = "until ! [ /proc/$!/ns/user -ef /proc/self/ns/user ]; do :; done"
    takes = f"{taken} {made}; {no_rights}; kill $!" if limit else f"exec {no_rights}"
    turn = f"echo {limit} >/proc/sys/user/max_user_namespaces && {{ {takes}; }}"
    found = report("unshare", "--user", "--map-root-user", "sh", "-c", turn, "sh")
    assert not found["engine_available"]
    assert found["reason"] == (
        f"The limit of user namespaces is reached: user.max_user_namespaces is {limit}."
    )
    assert "`sudo sysctl -w user.max_user_namespaces=" in found["hint"]


def test_the_doctor_names_damaged_snapshots(short_dir):
    settings = Settings(data_dir=str(short_dir / "data"))
    assert list(host_report.damage(settings)) == []
    (settings.store / "packs").mkdir(parents=True)
    [sound] = host_report.damage(settings)
    assert (sound.name, sound.ok) == ("snapshots", True)
    second = settings.store.with_name(f"{settings.store.name}-2")
    second.mkdir()
    note_damaged(settings.store, ["s1"])
    note_damaged(second, ["s2", "s3"])
    [found] = host_report.damage(settings)
    assert (found.ok, found.required, found.fix) == (False, False, "jupyter gpuckpt verify")
    assert "3 snapshots cannot be resumed" in found.message
    assert "s1, s2, s3" in found.message
    note_damaged(settings.store, [])
    second.joinpath("damaged.json").write_bytes(b"{")
    [sound] = host_report.damage(settings)
    assert sound.ok


def test_the_signal_that_ends_the_program_kills_none_of_its_threads(tmp_path):
    """A signal just after a resume meets a main thread that does not wait for it yet."""
    with subprocess.Popen(trial._spec(tmp_path).argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready ")
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        assert len(tasks) > 1
        for task in tasks:
            [line] = [
                line for line in (task / "status").read_text().splitlines() if "SigBlk" in line
            ]
            # sigtimedwait unblocks it while it waits.
            waits = task.name == str(process.pid)
            assert waits or int(line.split()[1], 16) & 1 << signal.SIGUSR1 - 1
        process.send_signal(signal.SIGUSR1)
        assert process.wait() == trial._SIGNALED
