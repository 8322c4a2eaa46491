"""The engine's settings. The daemon creates them once and passes them down; the engine reads no configuration itself."""

from __future__ import annotations

from pathlib import Path

import msgspec

INIT = Path(__file__).parent / "tree" / "gpuckpt-init"
CRIU_PRELOAD = Path(__file__).parent / "criu" / "criu-preload.so"


class EngineSettings(msgspec.Struct, frozen=True):
    """Paths, limits and deadlines of the engine.

    `spill_dir` holds CRIU's images if the skeleton dump cannot run; it must be on a real disk and the same path inside
    and outside the kernel's mount namespace.
    """

    criu: Path
    spill_dir: Path
    threads: int
    init: Path = INIT
    #: The library that is preloaded into CRIU; see criu/preload.c.
    criu_preload: Path = CRIU_PRELOAD
    #: Whether every kernel gets a user namespace of its own, in which it has no capabilities. This is needed where the daemon lacks rights.
    user_namespace: bool = False
    #: Whether every kernel is saved by CRIU's plain dump, as if the skeleton dump could not run.
    plain: bool = False
    #: The time after which a restore without progress is killed with its init.
    stall_seconds: float = 60.0
    #: How long the CUDA driver may wait for running GPU work before a save gives up.
    gpu_lock_seconds: float = 30.0
    #: The free memory below which a ghost is dropped and the save fails.
    headroom_bytes: int = 128 << 20
    #: The memory for packing chunks; 0: a quarter of the free memory.
    memory_bytes: int = 0
    #: Folders of the daemon's own, which are never saved as part of a working folder.
    own_folders: tuple[Path, ...] = ()
    #: The share of the memory believed unwritten that every save compares with its predecessor.
    checked_share: float = 0.01

    @property
    def kept_dir(self) -> Path:
        """The folder for copies of files that travel with snapshots (`engine.kept_files`)."""
        return kept_dir(self.spill_dir)


def kept_dir(spill_dir: Path) -> Path:
    """Return the folder beside `spill_dir`, by the name that CRIU finds, for copies of files that travel with snapshots."""
    return spill_dir.with_name(f"{spill_dir.name}-kept").resolve()
