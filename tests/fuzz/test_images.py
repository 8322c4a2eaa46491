"""Whatever CRIU's images in a snapshot hold: they are read and edited, or the snapshot is refused."""

import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpuckpt.engine import kept_file_copies, placing
from jupyter_gpuckpt.engine.criu import (
    file_images,
    inet_images,
    memory_images,
    missing_files,
    unix_images,
)
from jupyter_gpuckpt.engine.criu import images as criu_images
from jupyter_gpuckpt.engine.criu.images import Extent
from jupyter_gpuckpt.engine.memory import page_plan
from jupyter_gpuckpt.engine.tcp.remake import RemadeConnections
from jupyter_gpuckpt.errors import ObjectCorrupt
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.wire.manifest_records import Chunk, Manifest, Process, Stream
from tests.fuzz.inputs import altered, tries
from tests.fuzz.test_files import BODY, sealed

NO_CONNECTIONS = RemadeConnections([], lambda offset, length: b"")
MANIFEST = msgspec.structs.replace(
    manifests.parse(Path("saved.manifest"), sealed(BODY), Manifest),
    processes=[Process(12, 11, "python", pages="pages/12")],
    streams=[Stream("pages/12", 16384, [Chunk(b"", 4096), Chunk(b"x" * 32, 12288)])],
)

#: With a process that was forked from the other one.
RELATED = msgspec.structs.replace(
    MANIFEST, processes=[*MANIFEST.processes, Process(13, 12, "python", pages="pages/12")]
)


def message(*fields):
    """Fields of one message: numbers, bytes, or lists of fields."""
    parts = []
    for number, value in fields:
        content = message(*value) if isinstance(value, list) else value
        parts.append((number, 2 if isinstance(content, bytes) else 0, content))
    return criu_images.encode(parts)


def image(*messages):
    return struct.pack("<II", 0x54564319, 0x56303138) + b"".join(
        len(one).to_bytes(4, "little") + one for one in messages
    )


REG = [(1, 7), (2, 0o100001), (3, 0), (6, b"/tmp/link_remap.7"), (8, 10), (10, 0o100644)]
INET = [
    (1, 8),
    (2, 99),
    (3, 2),
    (4, 1),
    (5, 6),
    (6, 10),
    (7, 4000),
    (8, 0),
    (9, 2),
    (11, 0x100007F),
    (12, 0),
    (13, [(1, 0)]),
]
UNIX = [(1, 9), (2, 98), (3, 1), (4, 10), (11, b"/tmp/socket\0")]
TIMER = [(1, 10), (7, 0), (8, 0), (9, 1), (10, 0)]
SAMPLES = {
    "files.img": image(
        message((1, 1), (2, 7), (3, REG)),
        message((1, 4), (2, 8), (4, INET)),
        message((1, 16), (2, 9), (16, UNIX)),
        message((1, 12), (2, 10), (12, TIMER)),
    ),
    "remap-fpath.img": image(message((1, 6), (2, 7), (3, 0)), message((1, 5), (2, 3), (3, 1))),
    "pstree.img": image(message((1, 12), (2, 11), (3, 12), (4, 12), (5, 12))),
    "pagemap-12.img": image(
        message((1, 1)), message((1, 4096), (2, 2), (4, 6)), message((1, 65536), (5, 2), (4, 2))
    ),
    "mm-12.img": image(
        message(
            (12, 4),
            (14, [(1, 4096), (2, 12288), (3, 0), (4, 0), (5, 5), (6, 34), (7, 513)]),
            (14, [(1, 65536), (2, 81920), (3, 0), (4, 0), (5, 3), (6, 34), (7, 513)]),
            (14, [(1, 65536), (2, 69632), (3, 0), (4, 0), (5, 0), (6, 34), (7, 1 << 16)]),
        )
    ),
    "mm-13.img": image(
        message((12, 4), (14, [(1, 8192), (2, 12288), (3, 0), (4, 0), (5, 5), (6, 34), (7, 513)]))
    ),
    "core-12.img": image(message((1, 1), (3, [(1, 0), (6, b"python")]))),
    "fdinfo-2.img": image(message((1, 8), (2, 0), (3, 4), (4, 3))),
}


def look(name, data):
    """Do with the images what rehearsals, imports and resumes do."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        images = Path(directory)
        for other, content in SAMPLES.items():
            (images / other).write_bytes(content)
        (images / name).write_bytes(data)
        files = images / "files.img"
        for read in (
            lambda: placing.problem_of_images(MANIFEST, images),
            lambda: missing_files.missing(images, Path, MANIFEST.traveling),
            lambda: criu_images.processes(images),
            lambda: criu_images.highest_pid(images),
            lambda: criu_images.pagemap(images, 12),
            lambda: criu_images.pages_id(images, 12),
            lambda: criu_images.ghost_images(images),
            lambda: criu_images.highest_descriptor(images),
            lambda: unix_images.listening_files(files, private_shm=True),
            lambda: inet_images._read(files),
            lambda: unix_images._read(files),
            lambda: file_images.mend(files),
            lambda: criu_images.mend_scheduling(images),
            lambda: file_images.rewind(files, ["/tmp/socket"]),
            lambda: kept_file_copies.give_own_names(images, Path("/tmp")),
            lambda: memory_images.add_lazy(images, 12, [Extent(1 << 20, 8192, True)]),
            lambda: page_plan.align_areas(RELATED, images),
            lambda: page_plan.plan(MANIFEST, images),
            lambda: memory_images.replace_lazy(images, 12, [Extent(1 << 20, 8192, True)]),
            lambda: NO_CONNECTIONS.enter(images),
        ):
            # An OSError: a core of a process that is not there, or a path that is too long.
            with suppress(ObjectCorrupt, OSError):
                read()


@tries(0.1)
@given(st.one_of(st.tuples(st.just(name), altered([SAMPLES[name]])) for name in SAMPLES))
def test_images(named):
    look(*named)


def test_the_samples_are_read():
    with tempfile.TemporaryDirectory() as directory:
        images = Path(directory)
        for name, content in SAMPLES.items():
            (images / name).write_bytes(content)
        assert criu_images.link_remaps(images) == [("/tmp/link_remap.7", "")]
        assert [one.pid for one in criu_images.processes(images)] == [12]
        assert len(criu_images.pagemap(images, 12)) == 2
        [plan] = page_plan.plan(MANIFEST, images)
        assert (plan.by_us, plan.by_criu) == (
            [page_plan.Piece(8192, 65536, 8192)],
            [page_plan.Piece(0, 4096, 8192)],
        )
        assert unix_images.listening_files(images / "files.img", private_shm=True) == [
            "/tmp/socket"
        ]
        page_plan.align_areas(RELATED, images)
        assert [(one.start, one.end) for one in memory_images.areas(images, 12)][:2] == [
            (4096, 8192),
            (8192, 12288),
        ]
        _, listeners = inet_images._read(images / "files.img")
        assert [(one.port, one.family, one.address) for one in listeners] == [
            (4000, 2, "127.0.0.1")
        ]
