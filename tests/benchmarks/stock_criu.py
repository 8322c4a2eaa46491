"""CRIU as it is, without any of ours: dump to files, dump to a stream that nobody keeps, restore. Of the same kernel."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from jupyter_gpuckpt.engine import thaw
from jupyter_gpuckpt.engine.criu import images as criu_images
from jupyter_gpuckpt.engine.memory.filling import PageSink
from jupyter_gpuckpt.host import commands, criu_program
from jupyter_gpuckpt.images.sinks import FileSink
from jupyter_gpuckpt.images.unpack import Unpacking
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Manifest
from jupyter_gpuckpt.wire.progress import Progress, Stage

from .engine_kernel import EngineKernel

_SECONDS = 300
#: criu-image-streamer's protocol (criu/img-streamer.c): for every image CRIU sends a length, a message with the image's name,
#: and one byte that carries the reading end of a pipe.
_LENGTH = struct.Struct("<I")
_PIPE_BYTES = 1 << 20


def dump(init_pid: int, keeper_nspid: int, images: Path, *options: str) -> float:
    """Seconds that `criu dump --leave-running` took, from its start to its end."""
    criu = criu_program.find()
    assert criu is not None
    images.mkdir(parents=True, exist_ok=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    began = time.monotonic()
    commands.run(
        [
            *("prlimit", f"--nofile={hard}:{hard}"),
            *("nsenter", f"--target={init_pid}", "--pid", "--mount", "--"),
            *(criu, "dump", "--tree", str(keeper_nspid), "--leave-running"),
            *("--images-dir", images, "-v1", "--tcp-close", "--file-locks", "--link-remap"),
            *("--manage-cgroups=ignore", "--ghost-limit", "256M", "--skip-in-flight", *options),
        ],
        timeout=_SECONDS,
    )
    return time.monotonic() - began


def stood_still(images: Path) -> float:
    """Seconds for which the tasks of a dump stood still, by CRIU's own count (images/stats.proto)."""
    for message in criu_images.messages(images / "stats-dump"):
        for number, _, value in criu_images.fields(message):
            if number == 1 and isinstance(value, bytes):  # dump_stats_entry
                times = {inner: count for inner, _, count in criu_images.fields(value)}
                # freezing_time and frozen_time, in microseconds
                return (int(times[1]) + int(times[2])) / 1e6
    raise AssertionError("criu dump left no statistics")


def dump_to_nowhere(kernel: EngineKernel, images: Path) -> float:
    """Seconds of a dump whose images go through pipes (--stream) to readers that forget them; hardly anything is written."""
    images.mkdir(parents=True, exist_ok=True)
    with _Drain(images / "streamer-capture.sock"):
        return dump(kernel.tree.init_pid, kernel.tree.keeper_nspid, images, "--stream")


class _Drain:
    """The other side of `criu dump --stream`: takes the pipe of every image and reads it to its end."""

    def __init__(self, path: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(1)
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()
        for thread in self._readers:
            thread.join()
        for descriptor in (self._stop_read, self._stop_write):
            os.close(descriptor)
        self._server.close()

    def _serve(self) -> None:
        if self._server not in select.select([self._server, self._stop_read], [], [])[0]:
            return
        with self._server.accept()[0] as connection:
            while len(head := connection.recv(_LENGTH.size, socket.MSG_WAITALL)) == _LENGTH.size:
                [length] = _LENGTH.unpack(head)
                connection.recv(length, socket.MSG_WAITALL)
                (reading,) = socket.recv_fds(connection, 1, 1)[1]
                thread = threading.Thread(target=self._drain, args=(reading,), daemon=True)
                thread.start()
                self._readers.append(thread)

    @staticmethod
    def _drain(reading: int) -> None:
        # Into memory, as ours is read: splice into /dev/null would only pass references to pages on.
        memory = bytearray(_PIPE_BYTES)
        with os.fdopen(reading, "rb", buffering=0) as file:
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            while file.readinto(memory):
                pass


def restore(
    kernel: EngineKernel, manifest: Manifest, store: LocalStore, images: Path
) -> tuple[float, float]:
    """Seconds to the first reply, and of these what `criu restore` took. The kernel must be gone; `images` stay.

    Namespaces, scratch files and the end are made as in a resume of ours (`manifest` is of a save just before the dump); what
    CRIU restores are its own images, on the disk as it wrote them.
    """
    progress = Progress()
    began = time.monotonic()
    kernel.tree = thaw.thaw(
        msgspec.structs.replace(manifest, method="plain"),
        _Images(manifest, store, images),
        replace(kernel.settings, spill_dir=images.parent / "restored"),
        exit_path=kernel.exit_path(),
        progress=progress,
    ).tree
    kernel.reply()
    return time.monotonic() - began, progress.seconds_by_stage[Stage.RESTORE]


class _Images:
    """`content.Content`: the few captured files from our store, the images from where CRIU wrote them."""

    def __init__(self, manifest: Manifest, store: LocalStore, images: Path) -> None:
        self._manifest, self._store, self._images = manifest, store, images

    def to_file(self, jobs: Sequence[tuple[str, Path]]) -> None:
        streams = [(self._manifest.stream(name), FileSink(path)) for name, path in jobs]
        Unpacking(streams, self._store, threads=1).run(Progress())

    def writing(self, jobs: Sequence[tuple[str, Path]]) -> Callable[[], None]:
        raise AssertionError("there is no GPU memory")

    def to_memory(self, jobs: Sequence[tuple[str, PageSink]]) -> Callable[[], None]:
        raise AssertionError("a plain restore reads its pages itself")

    def images(self, directory: Path) -> None:
        for image in self._images.glob("*.img"):
            # files.img is edited by thaw; the rest is only read.
            if image.name == "files.img":
                shutil.copy(image, directory)
            else:
                (directory / image.name).symlink_to(image)

    def reader(self, stream: str) -> Callable[[int, int], bytes]:
        raise AssertionError("a plain restore reads its pages itself")
