"""The properties of this machine on which a snapshot depends, and the comparison of two machines."""

from __future__ import annotations

import os
import platform
import socket
from functools import cache
from pathlib import Path

from ..wire.deadlines import boot_id
from ..wire.manifest_records import Host
from ..wire.plurals import counted
from . import gpu

#: Prefixes of names in /proc/cpuinfo that stand for features a program can use: instructions
#: and their registers. The others (mitigations, power, virtualization, features for the operating
#: system) differ between machines on which the same program runs equally well.
INSTRUCTIONS = (
    *("3dnow", "abm", "adx", "aes", "amx", "avx", "bmi", "cldemote", "clflush", "clwb", "clzero"),
    *("cmov", "cmpccxadd", "cx16", "cx8", "f16c", "fma", "fpu", "fsgsbase", "fxsr", "gfni", "hle"),
    *("lahf_lm", "lm", "lwp", "misalignsse", "mmx", "monitorx", "movbe", "movdir", "mwaitx"),
    *("ospke", "pclmul", "pku", "pni", "popcnt", "prefetchi", "raoint", "rdpid", "rdrand"),
    *("rdseed", "rdtscp", "rtm", "serialize", "sha_ni", "sha512", "sm3", "sm4", "sse", "ssse3"),
    *("tbm", "tsc", "uintr", "user_shstk", "vaes", "vpclmul", "waitpkg", "xgetbv", "xop", "xsave"),
)

#: Prefixes of names that look like an instruction but do not stand for one.
NOT_INSTRUCTIONS = ("tsc_adjust", "tsc_deadline", "tsc_known", "tsc_reliable", "tsc_scale")


def host(cpuinfo: Path = Path("/proc/cpuinfo")) -> Host:
    """Return the present properties of this machine."""
    return Host(
        name=socket.gethostname(),
        machine=platform.machine(),
        kernel_release=platform.release(),
        cpu_flags=_cpu_flags(cpuinfo),
        driver_version=gpu.driver_version(),
        gpus=gpu.gpus(),
        home=os.environ.get("HOME", ""),
        boot_id=boot_id(),
    )


def differences(saved: Host, this_host: Host, *, with_gpu: bool = True) -> list[str]:
    """Return the reasons why a kernel saved on `saved` may not run on `this_host`, as whole sentences; empty if there are none.

    `with_gpu`: whether the snapshot holds GPU memory; without it drivers and GPUs may differ.
    Additional instructions, GPUs or memory of `this_host` are no difference.
    """
    if saved.machine != this_host.machine:
        return [
            f"The snapshot was taken on a machine of type {saved.machine}; this one is"
            f" {this_host.machine}."
        ]
    found = []
    lacking = sorted(set(filter(_is_instruction, saved.cpu_flags)) - set(this_host.cpu_flags))
    if lacking:
        found.append(
            "This machine's processor lacks instructions that the saved one had:"
            f" {', '.join(lacking)}."
        )
    return found + _gpu_differences(saved, this_host) if with_gpu else found


def _gpu_differences(saved: Host, this_host: Host) -> list[str]:
    found = []
    if not this_host.driver_version:
        if saved.driver_version:
            found.append(
                "The snapshot holds GPU memory; this machine has no working NVIDIA driver."
            )
        return found
    # The driver's own state is in the snapshot, and versions promise no compatibility.
    if saved.driver_version != this_host.driver_version:
        found.append(
            f"The snapshot was taken with NVIDIA driver {saved.driver_version}; this machine has"
            f" {this_host.driver_version}."
        )
    left = saved.gpus
    while left:
        needed = [device for device in left if gpu.same_model(left[0], device)]
        present = sum(gpu.same_model(left[0], device) for device in this_host.gpus)
        if present < len(needed):
            found.append(
                f"The snapshot needs {counted(len(needed), 'GPU')} of the model"
                f" {gpu.described(left[0])}; this machine has {present or 'none'}."
            )
        left = [device for device in left if device not in needed]
    return found


def _is_instruction(flag: str) -> bool:
    return flag.startswith(INSTRUCTIONS) and not flag.startswith(NOT_INSTRUCTIONS)


@cache
def _cpu_flags(cpuinfo: Path) -> list[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    rows = [set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")]
    # Only features that every processor has: the scheduler may move a thread to any of them.
    return sorted(set.intersection(*rows)) if rows else []
