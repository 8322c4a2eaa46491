"""host.machine_profile, privileges, limits, gpu and doctor: what this machine is, has and allows."""

import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from jupyter_gpuckpt.engine.settings import INIT
from jupyter_gpuckpt.host import (
    criu_program,
    doctor_checks,
    doctor_remedies,
    gpu,
    limits,
    machine_profile,
    pagemap_scan,
    privileges,
)
from jupyter_gpuckpt.host.doctor_checks import CheckedFiles
from jupyter_gpuckpt.wire.manifest_records import Gpu, Host
from jupyter_gpuckpt.wire.protocol import Check
from tests.filters import NO_SUCH_CALL, refuse

H100 = Gpu("GPU-1", "NVIDIA H100 80GB HBM3", 85_520_809_984)
A10 = Gpu("GPU-2", "NVIDIA A10", 24_146_608_128)
SAVED = Host(
    "a", "x86_64", "6.1", ["avx", "avx512f", "sse2"], "580.1", [H100, H100], "/root", "boot"
)

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="starts programs with fewer rights")


def here(**changes):
    return msgspec.structs.replace(SAVED, **changes)


def test_this_machine_differs_in_nothing_from_itself():
    found = machine_profile.host()
    assert found.machine == platform.machine()
    assert "fpu" in found.cpu_flags or found.machine != "x86_64"
    assert machine_profile.differences(found, found) == []


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
    (difference,) = machine_profile.differences(SAVED, here(**changes))
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
    assert machine_profile.differences(SAVED, here(**changes)) == []


def test_processor_features_that_programs_cannot_use_do_not_matter():
    saved = here(cpu_flags=["ibpb", "hypervisor", "tsc_deadline_timer", "sse2"])
    assert machine_profile.differences(saved, here(cpu_flags=["sse2"])) == []


def test_without_gpu_memory_the_driver_does_not_matter():
    bare = here(driver_version="", gpus=[])
    assert machine_profile.differences(SAVED, bare, with_gpu=False) == []


def test_flags_are_those_that_every_processor_has(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: sse2 avx\nvmx flags\t: ept\n\nflags\t\t: sse2\n")
    assert machine_profile.host(cpuinfo).cpu_flags == ["sse2"]


def test_no_gpu_is_empty_and_no_error():
    if gpu.driver_version():
        assert gpu.gpus()
        assert set(gpu.free_bytes()) == {one.uuid for one in gpu.gpus()}
    else:
        assert gpu.unavailable_reason()
        assert (gpu.gpus(), gpu.free_bytes()) == ([], {})
        assert gpu.utilization_of([os.getpid()]) is None
    assert gpu.memory_of([os.getpid()]) == {}


def test_effective_capabilities_are_those_of_the_user():
    if os.geteuid() == 0:
        assert "SETUID" in privileges.effective()
    else:
        assert "SYS_ADMIN" not in privileges.effective()


def test_more_descriptors_allow_larger_kernels():
    assert limits.largest_skeleton_bytes() < limits.dump_descriptors() * limits.LARGE_PIPE_BYTES
    assert limits.descriptors()[0] <= limits.descriptors()[1]


@needs_root
def test_the_rights_of_a_user_namespace_raise_no_limit():
    code = "from jupyter_gpuckpt.host import limits; print(limits.dump_descriptors(), limits.largest_skeleton_bytes())"
    unshare = ["prlimit", "--nofile=5000:5000", "unshare", "--user", "--map-root-user"]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    count, largest = map(int, done.stdout.split())
    assert count == 5000
    assert largest < count // 2 * limits.PIPE_BYTES


@needs_root
@pytest.mark.skipif(not pagemap_scan.is_supported(), reason="every page takes descriptors")
@pytest.mark.parametrize(("limit", "enough"), [(1500, False), (8192, True)])
def test_descriptors_are_short_only_for_memory_that_is_not_hidden(limit, enough):
    code = """
from pathlib import Path
from jupyter_gpuckpt.host import doctor_checks
[found] = doctor_checks.descriptors(doctor_checks.CheckedFiles(None, Path(), Path()))
print(found.ok, bool(found.fix), found.message)
"""
    unshare = ["prlimit", f"--nofile={limit}:{limit}", "unshare", "--user", "--map-root-user"]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert done.stdout.startswith(f"{enough} {not enough} Processes")
    assert f"({limit} descriptors)" in done.stdout


def test_the_report_is_quick_and_complete(tmp_path):
    # Of the processor: on a loaded machine everything takes long.
    before = os.times()[:4]
    files = CheckedFiles(criu_program.find(), tmp_path / "no-init", tmp_path / "not" / "yet")
    report = doctor_checks.report(files, list)
    assert sum(os.times()[:4]) - sum(before) < 1.5
    checks = {check.name: check for check in report.checks}
    assert {"platform", "criu", "init", "store", "/dev/shm"} <= set(checks)
    assert checks["store"].ok is not None
    assert checks["init"].ok is False
    assert checks["init"].fix
    assert not report.engine_available
    assert all(check.message.endswith((".", ")")) for check in report.checks)


def test_one_failing_required_check_is_the_reason(tmp_path):
    report = doctor_checks.report(CheckedFiles(tmp_path / "criu", INIT, tmp_path), list)
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
    assert criu_program.find() == on_path
    script(on_path, "exit 1")
    assert criu_program.find() == of_wheel
    of_wheel.unlink()
    assert criu_program.find() is None
    script(old, "echo Version: 4.2")
    assert criu_program.find() == old
    del sys.modules[package.name]


def test_a_trial_is_made_only_where_all_that_it_needs_is_there(tmp_path):
    def trial():
        asked.append(1)
        yield Check("resume", False, "It did not come back.", "do this", required=True)

    asked = []
    files = CheckedFiles(tmp_path / "criu", INIT, tmp_path)
    assert not doctor_checks.report(files, trial).engine_available
    assert asked == []
    script(files.criu, "echo Version: 4.2")
    report = doctor_checks.report(files, trial)
    assert asked == [1]
    assert not report.engine_available
    assert report.reason == "It did not come back."
    assert "do this" in report.hint

    def broken():
        raise ImportError("libstdc++.so.6: cannot open shared object file")

    # Nothing else shows that kernels can be saved.
    report = doctor_checks.report(files, broken)
    assert not report.engine_available
    assert "libstdc++" in report.reason


#: Rights are dropped with setpriv: what is root here has other causes.
MEND = """
import json, sys
from pathlib import Path
from jupyter_gpuckpt.host import doctor_remedies
print(json.dumps(doctor_remedies.find("mount /proc: Permission denied", sysctl=Path(sys.argv[1]))))
"""


@needs_root
@pytest.mark.parametrize(
    ("switch", "value", "words"),
    [
        ("user/max_user_namespaces", 0, "sysctl -w user.max_user_namespaces="),
        ("kernel/unprivileged_userns_clone", 0, "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", 1, "doctor --apparmor"),
    ],
)
@pytest.mark.parametrize("filtered", [False, True])
def test_a_switch_of_linux_is_named_with_what_turns_it(tmp_path, switch, value, words, filtered):
    for name in ("user", "kernel"):
        (tmp_path / name).mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("96365\n")
    (tmp_path / switch).write_text(f"{value}\n")
    done = subprocess.run(
        [*WITHOUT_RIGHTS, sys.executable, "-c", MEND, str(tmp_path)],
        preexec_fn=(lambda: refuse(NO_SUCH_CALL, errno.EPERM)) if filtered else None,
        capture_output=True,
        check=True,
        text=True,
    )
    why, fix = json.loads(done.stdout)
    assert Path(switch).name in why
    assert words in fix


@pytest.mark.parametrize("lines", [doctor_remedies.CONTAINER, doctor_remedies.CONTAINER_SETFCAP])
def test_what_kubernetes_is_told_is_a_security_context(lines):
    context = yaml.safe_load(lines["kubernetes"])["securityContext"]
    assert context["procMount"] == "Unmasked"
    assert context["seccompProfile"]["localhostProfile"] == doctor_remedies.SECCOMP_FILE
    assert context.get("capabilities", {"add": ["SETFCAP"]}) == {"add": ["SETFCAP"]}


def test_the_seccomp_profile_can_be_written_to_a_file():
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", "doctor", "--seccomp"],
        capture_output=True,
        check=True,
    )
    allowed = json.loads(done.stdout)["syscalls"][0]["names"]
    assert {"unshare", "mount", "kcmp", "vmsplice", "process_vm_writev"} <= set(allowed)
    assert not {"io_uring_setup", "bpf", "kexec_load", "init_module"} & set(allowed)


def test_the_apparmor_profile_names_the_program_that_makes_namespaces():
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", "doctor", "--apparmor"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert f'"{INIT}"' in done.stdout
    assert "userns," in done.stdout
