"""What the engine needs to know of its surroundings: found once by the daemon, handed down, never looked up below."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

INIT = Path(__file__).parent / "tree" / "gpuckpt-init"
CRIU_PRELOAD = Path(__file__).parent / "criu" / "criu-preload.so"


@dataclass(frozen=True)
class EngineSettings:
    """Paths, limits and deadlines of the engine.

    `spill_dir` takes CRIU's images where the skeleton dump cannot run; it must be on a real disk and the same path inside
    and outside the kernel's mount namespace.
    """

    criu: Path
    spill_dir: Path
    threads: int
    init: Path = INIT
    #: Preloaded into a dump; see criu/preload.c.
    criu_preload: Path = CRIU_PRELOAD
    #: Give every kernel a user namespace of its own, in which it has no capability: where one is missing to do without.
    user_namespace: bool = False
    #: Use CRIU's plain dump for every kernel, as where the skeleton dump cannot run.
    plain: bool = False
    #: A restore that makes no progress for this long is killed with its init.
    stall_seconds: float = 60.0
    #: How long the CUDA driver may wait for running GPU work before a save gives up.
    gpu_lock_seconds: float = 30.0
    #: A ghost is dropped, and the save fails, when less memory than this is left.
    headroom_bytes: int = 128 << 20
    #: What chunks on their way may take; 0: a quarter of what is free.
    memory_bytes: int = 0
