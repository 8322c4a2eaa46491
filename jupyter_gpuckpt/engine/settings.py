"""The engine's settings: the daemon makes them once and passes them down; the engine looks nothing up by itself."""

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
    #: The library that is preloaded into CRIU; see criu/preload.c.
    criu_preload: Path = CRIU_PRELOAD
    #: Give every kernel a user namespace of its own, without capabilities: needed where the daemon lacks rights.
    user_namespace: bool = False
    #: Use CRIU's plain dump for every kernel, as where the skeleton dump cannot run.
    plain: bool = False
    #: A restore that makes no progress for this long is killed with its init.
    stall_seconds: float = 60.0
    #: How long the CUDA driver may wait for running GPU work before a save gives up.
    gpu_lock_seconds: float = 30.0
    #: A ghost is dropped, and the save fails, when less memory than this is left.
    headroom_bytes: int = 128 << 20
    #: Memory for chunks that are being packed; 0: a quarter of the free memory.
    memory_bytes: int = 0
