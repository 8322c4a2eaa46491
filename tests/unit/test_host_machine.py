"""host.fingerprint, privileges, limits, gpu and doctor: what this machine is, has and allows."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.host import criu_program, doctor, fingerprint, gpu, limits, privileges
from jupyter_gpuckpt.model import Gpu, Host

H100 = Gpu("GPU-1", "NVIDIA H100 80GB HBM3", 85_520_809_984)
A10 = Gpu("GPU-2", "NVIDIA A10", 24_146_608_128)
SAVED = Host("a", "x86_64", "6.1", ["avx", "avx512f", "sse2"], "580.1", [H100, H100])

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="starts programs with fewer rights")


def here(**changes):
    return msgspec.structs.replace(SAVED, **changes)


def test_this_machine_differs_in_nothing_from_itself():
    found = fingerprint.host()
    assert found.machine == platform.machine()
    assert "fpu" in found.cpu_flags or found.machine != "x86_64"
    assert fingerprint.differences(found, found) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": "aarch64"}, ["x86_64", "aarch64"]),
        ({"cpu_flags": ["avx", "sse2"]}, ["avx512f"]),
        ({"driver_version": "570.3"}, ["580.1", "570.3"]),
        ({"driver_version": "", "gpus": []}, ["no working NVIDIA driver"]),
        ({"gpus": [H100]}, ["2 GPUs", "H100", "has 1"]),
        ({"gpus": [A10, A10]}, ["2 GPUs", "H100", "has none"]),
        ({"gpus": [msgspec.structs.replace(H100, memory_bytes=10**9)] * 2}, ["86 GB"]),
    ],
)
def test_each_difference_is_a_sentence(changes, words):
    (difference,) = fingerprint.differences(SAVED, here(**changes))
    assert difference.endswith(".")
    assert all(word in difference for word in words)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "b", "kernel_release": "6.9"},
        {"cpu_flags": [*SAVED.cpu_flags, "amx_tile"]},
        {"gpus": [A10, H100, H100]},
        {"gpus": [msgspec.structs.replace(H100, uuid="GPU-9")] * 2},
        # 85.5 GB rounds up, this rounds down.
        {"gpus": [msgspec.structs.replace(H100, memory_bytes=85_480_000_000)] * 2},
    ],
)
def test_having_more_or_another_name_is_no_difference(changes):
    assert fingerprint.differences(SAVED, here(**changes)) == []


def test_processor_features_that_programs_cannot_use_do_not_matter():
    saved = here(cpu_flags=["ibpb", "hypervisor", "tsc_deadline_timer", "sse2"])
    assert fingerprint.differences(saved, here(cpu_flags=["sse2"])) == []


def test_without_gpu_memory_the_driver_does_not_matter():
    bare = here(driver_version="", gpus=[])
    assert fingerprint.differences(SAVED, bare, with_gpu=False) == []


def test_flags_are_those_that_every_processor_has(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: sse2 avx\nvmx flags\t: ept\n\nflags\t\t: sse2\n")
    assert fingerprint.host(cpuinfo).cpu_flags == ["sse2"]


def test_no_gpu_is_empty_and_no_error():
    if gpu.driver_version():
        assert gpu.gpus()
        assert set(gpu.free_bytes()) == {one.uuid for one in gpu.gpus()}
    else:
        assert gpu.unavailable_reason()
        assert (gpu.gpus(), gpu.free_bytes()) == ([], {})
        assert gpu.utilization_of([os.getpid()]) is None
    assert gpu.memory_of([os.getpid()]) == {}


def test_effective_capabilities_are_within_the_bounding_set():
    if os.geteuid() == 0:
        assert "SETUID" in privileges.effective()
        assert privileges.effective() <= privileges.bounding()
    else:
        assert "SYS_ADMIN" not in privileges.effective()


def test_more_descriptors_allow_larger_kernels():
    assert limits.largest_skeleton_bytes() < limits.dump_descriptors() * limits.LARGE_PIPE_BYTES
    assert limits.descriptors()[0] <= limits.descriptors()[1]


def test_the_report_is_quick_and_complete(tmp_path):
    began = time.monotonic()
    criu = doctor.find_criu()
    report = doctor.report(criu, init=tmp_path / "no-init", store=tmp_path / "not" / "yet")
    assert time.monotonic() - began < 1.5
    checks = {check.name: check for check in report.checks}
    assert {"platform", "rights", "criu", "init", "ptrace", "store", "/dev/shm"} <= set(checks)
    assert checks["store"].ok is not None
    assert checks["init"].ok is False
    assert checks["init"].fix
    assert not report.engine_available
    assert all(check.message.endswith((".", ")")) for check in report.checks)


def test_one_failing_required_check_is_the_reason(tmp_path):
    report = doctor.report(tmp_path / "criu")
    assert not report.engine_available
    assert report.reason
    assert report.hint
    criu = next(check for check in report.checks if check.name == "criu")
    assert criu.ok is False
    assert str(tmp_path / "criu") in criu.message


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_first_criu_that_is_new_enough_is_taken(tmp_path, monkeypatch):
    old = script(tmp_path / "old", "echo Version: 3.17.1")
    on_path = script(tmp_path / "bin/criu", "echo Version: 4.10")
    package = tmp_path / "site/jupyter_gpuckpt_criu"
    of_wheel = script(package / "criu", "echo Version: 4.2")
    (package / "__init__.py").write_text(f"CRIU = {str(of_wheel)!r}")
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("JUPYTER_GPUCKPT_CRIU", str(old))
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    assert list(criu_program.candidates()) == [old, on_path, of_wheel]
    assert doctor.find_criu() == on_path
    script(on_path, "exit 1")
    assert doctor.find_criu() == of_wheel
    of_wheel.unlink()
    assert doctor.find_criu() is None
    script(old, "echo Version: 4.1")
    assert doctor.find_criu() == old
    del sys.modules[package.name]


REPORT = """
import sys, msgspec
from jupyter_gpuckpt.host import doctor
sys.stdout.write(msgspec.json.encode(doctor.report(doctor.find_criu())).decode())
"""


def report_with(*prefix: str) -> dict:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", REPORT],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(doctor.__file__).parents[2])},
    )
    return json.loads(done.stdout)


@needs_root
def test_root_without_a_capability_does_without():
    report = report_with("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
    checks = {check["name"]: check for check in report["checks"]}
    assert "No right is needed" in checks["rights"]["message"]
    assert checks["namespaces"]["ok"] is True
    assert checks["ptrace"]["ok"] is True
    assert report["engine_available"]


@needs_root
def test_where_user_namespaces_are_refused_the_error_is_named():
    refused = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    report = report_with("unshare", "--map-root-user", "sh", "-c", refused, "sh")
    assert not report["engine_available"]
    assert "user namespace" in report["reason"]
    assert "ENOSPC" in report["reason"]
    assert report["hint"]


@needs_root
def test_an_ordinary_user_needs_no_right():
    report = report_with(sys.executable, "-m", "tests.as_user")
    assert report["engine_available"], report["reason"]
