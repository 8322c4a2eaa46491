"""The trial of the ferry that decides whether kernels get it: what it finds with a driver in RAM, and when it is made again."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.daemon import host_report
from jupyter_gpuckpt.daemon.kernels import ferry_choice
from jupyter_gpuckpt.daemon.kernels.ferry_choice import FerryChoice
from jupyter_gpuckpt.engine.gpu.ferry import ferry_trial
from jupyter_gpuckpt.engine.gpu.ferry.ferry_trial import Outcome
from jupyter_gpuckpt.engine.tree import ferry_library
from jupyter_gpuckpt.host import gpu
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from tests.conftest import wait_for
from tests.engine.test_ferry_library import libraries

__all__ = ["libraries"]
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def machine(libraries, monkeypatch, tmp_path):
    """Let this machine have the driver in RAM."""
    found = SimpleNamespace(version="580.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu, "driver_version", lambda: found.version)
    return found


def test_where_memory_comes_back_as_it_was_it_works_and_is_remembered(machine):
    assert ferry_trial.remembered() is None
    assert ferry_trial.made() == Outcome(True)
    assert ferry_trial.remembered() == Outcome(True)
    machine.version = "580.2"
    assert ferry_trial.remembered() is None


def test_another_library_is_tried_anew(machine, monkeypatch, tmp_path):
    ferry_trial.made()
    other = tmp_path / "gpu-ferry.so"
    other.write_bytes(ferry_library.LIBRARY.read_bytes() + b"\0")
    monkeypatch.setattr(ferry_library, "LIBRARY", other)
    assert ferry_trial.remembered() is None
    assert ferry_trial.made() == Outcome(True)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("DRIVER_CANNOT", "share", "cannot be taken in the form that is handed over"),
        ("DRIVER_LOSES_BYTES", "1", "came back with other bytes"),
        ("DRIVER_OLD_GPU", "1", "compute capability is less than 7.0"),
    ],
)
def test_where_it_does_not_work_the_reason_is_told_and_remembered(
    machine, monkeypatch, variable, value, reason
):
    monkeypatch.setenv(variable, value)
    found = ferry_trial.made()
    assert found.works is False
    assert reason in found.reason
    assert ferry_trial.remembered() == found


def test_an_old_driver_is_not_tried(machine):
    machine.version = "560.35"
    assert ferry_trial.made() == Outcome(False, "NVIDIA driver 560.35 cannot save GPU memory")


def test_what_cannot_be_found_out_now_is_not_remembered(machine, monkeypatch, tmp_path):
    (tmp_path / "refuses").write_text("0 9")
    monkeypatch.setenv("DRIVER_REFUSES", str(tmp_path / "refuses"))
    assert ferry_trial.made() == Outcome(None, "GPU 0 could not be tried: it is full")
    monkeypatch.setenv("DRIVER_GPUS", "0")
    assert ferry_trial.made() == Outcome(None, "this process sees no GPU")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    assert ferry_trial.made().reason.startswith("CUDA does not start: ")
    assert not list((tmp_path / "cache").rglob("*"))


def test_a_full_gpu_is_passed_over(machine, monkeypatch, tmp_path):
    (tmp_path / "refuses").write_text("0 9 0")
    monkeypatch.setenv("DRIVER_REFUSES", str(tmp_path / "refuses"))
    monkeypatch.setenv("DRIVER_GPUS", "2")
    assert ferry_trial.made() == Outcome(True)


def test_a_trial_that_crashes_is_a_failed_one(machine, monkeypatch):
    monkeypatch.setattr(ferry_trial, "_PROGRAM", "jupyter_gpuckpt.nothing_here")
    found = ferry_trial.made()
    assert found.works is False
    assert "did not end well" in found.reason


def test_a_trial_for_which_there_is_no_room_on_the_disk_says_nothing(machine, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ferry_trial.tempfile, "TemporaryDirectory", full)
    found = ferry_trial.made()
    assert found.works is None
    assert "No space left on device" in found.reason


SPEC = LaunchSpec("k", ["python"], {}, "/", "/log", gpu_copy="own")


@pytest.fixture
def trials(machine, monkeypatch):
    """Replace trials; `outcomes`: theirs, in turn."""
    found = SimpleNamespace(outcomes=[], made=0, may_end=threading.Event())
    found.may_end.set()

    def made():
        found.made += 1
        found.may_end.wait()
        return found.outcomes.pop(0)

    monkeypatch.setattr(ferry_trial, "made", made)
    return found


def test_a_kernel_gets_the_ferry_where_the_trial_succeeded(trials):
    trials.outcomes = [Outcome(True)]
    choice = FerryChoice()
    assert choice.resolve(SPEC) is SPEC
    assert choice.resolve(SPEC) is SPEC
    assert trials.made == 1


def test_a_kernel_does_not_get_the_ferry_where_the_trial_failed(trials):
    trials.outcomes = [Outcome(False, "it is broken")]
    choice = FerryChoice()
    for _ in range(2):
        assert choice.resolve(SPEC).gpu_copy == "driver"
    assert trials.made == 1


def test_a_trial_that_said_nothing_is_made_again_after_a_while(trials, monkeypatch):
    trials.outcomes = [Outcome(None, "full"), Outcome(True)]
    choice = FerryChoice()
    for _ in range(2):
        assert choice.resolve(SPEC).gpu_copy == "driver"
    monkeypatch.setattr(ferry_choice, "RETRY_SECONDS", 0.0)
    assert choice.resolve(SPEC) is SPEC
    assert trials.made == 2


def test_a_kernel_does_not_wait_long_for_a_trial(trials, monkeypatch):
    trials.outcomes = [Outcome(True)]
    trials.may_end.clear()
    monkeypatch.setattr(ferry_choice, "PATIENCE_SECONDS", 0.0)
    choice = FerryChoice()
    assert choice.resolve(SPEC).gpu_copy == "driver"
    trials.may_end.set()
    wait_for(lambda: choice.resolve(SPEC) is SPEC)
    assert trials.made == 1


def test_without_a_driver_or_where_the_user_chose_it_nothing_is_tried(trials, machine):
    driver = LaunchSpec("k", ["python"], {}, "/", "/log", gpu_copy="driver")
    assert FerryChoice().resolve(driver) is driver
    machine.version = ""
    assert FerryChoice().resolve(SPEC).gpu_copy == "driver"
    assert trials.made == 0


def test_the_doctor_says_who_copies_and_why(machine, monkeypatch):
    assert list(host_report._gpu_copies(fresh=False)) == []
    [check] = host_report._gpu_copies(fresh=True)
    assert check.ok
    assert "stays on the GPU" in check.message
    monkeypatch.setenv("DRIVER_CANNOT", "share")
    [check] = host_report._gpu_copies(fresh=True)
    assert check.ok is False
    assert "The driver copies" in check.message
    assert "cannot be taken" in check.message
