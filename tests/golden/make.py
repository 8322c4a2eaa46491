"""Make the golden files: one set of everything that is kept, as this version writes it, which every later version must read.

    make golden

Run it, as root and on a machine with CRIU, after a change of what is stored. From the first release on the set is frozen: a later format
gets a set of its own beside it.
"""

import ctypes
import json
import shutil
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
from blake3 import blake3

from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord, Records
from jupyter_gpuckpt.engine.criu import images as criu_images
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.host import criu_program
from jupyter_gpuckpt.images.chunking import cut, is_zero
from jupyter_gpuckpt.images.compression import Compressor
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.snapshots.export import export
from jupyter_gpuckpt.snapshots.save import save
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire import file_records, manifest_records
from jupyter_gpuckpt.wire.place import Place
from jupyter_gpuckpt.wire.progress import Progress
from jupyter_gpuckpt.wire.protocol import Owner, OwnerKind
from jupyter_gpuckpt.wire.states import KernelState
from tests.golden.programs import FILES, KINDS, asked, launched, scripted_gpu
from tests.golden.records import KEPT, enumerated, filled, kind_of

SHM = "/dev/shm/"
LINK = "/home/jovyan/link_remap.7"
GPU = f"{manifest_records.SCRATCH}/gpu/gpu-12-0"
#: When the snapshots were taken, and until when the deleted one is kept: the year 2100.
CREATED, KEPT_UNTIL = 1_750_000_000.0, 4_102_444_800.0


def contents() -> dict[str, bytes]:
    """Return the streams: each of the codecs, zeros, and CRIU's images."""
    draw = np.random.default_rng(1)
    normal = draw.standard_normal(8192)
    message = criu_images.encode(
        [
            (1, 0, 1),
            (2, 0, 7),
            (3, 2, criu_images.encode([(1, 0, 7), (2, 0, 2), (6, 2, LINK.encode())])),
        ]
    )
    link = criu_images.encode([(1, 0, 6), (2, 0, 7), (3, 0, 0)])
    return {
        "images": _image(message) + _image(link),
        "pages/12": draw.bytes(20_000) + bytes(8_096 + 40_960) + b"the same again. " * 2048,
        f"gpu{GPU}": normal.astype(np.float32).tobytes(),
        f"file{SHM}doubles": normal.tobytes(),
        f"file{SHM}halves": (normal.astype(np.float32).view(np.uint32) >> 16)
        .astype(np.uint16)
        .tobytes(),
        f"file{LINK}": b"a file whose name was taken",
        f"file{manifest_records.SCRATCH}/keeper": b"\x7fELF and so on",
        "tcp": b"on its way",
    }


def main() -> None:
    """Write the folder anew."""
    shutil.rmtree(FILES, ignore_errors=True)
    _write_store()
    _write_record(FILES / "state")
    _write_snapshots()
    known = {
        name: {"record": filled(kind_of(name)), "values": enumerated(kind_of(name))}
        for name in KEPT
    }
    _write_json("records.json", known)


def _write_json(name: str, content: object) -> None:
    (FILES / name).write_text(json.dumps(content, indent=1) + "\n")


def _write_store() -> None:
    """Write a store, an export of one of its snapshots, and what is to be found in them."""
    streams = contents()
    with LocalStore(FILES / "store") as store:
        records = _stored(store, streams)
        for snapshot_id in ("saved", "suspended", "deleted"):
            store.publish(_manifest(snapshot_id, records, len(streams["images"])))
        store.annotate("saved", {"title": "Größe", "note": "two\nlines", "pinned": True})
        store.mark_deleted("deleted", KEPT_UNTIL - CREATED)
        with export(store, "saved") as archive:
            (FILES / "saved.tar").write_bytes(b"".join(archive.pieces()))
        lists = [store.snapshots(), [one.info for one in store.deleted()]]
        expected = {
            "snapshots": msgspec.to_builtins(lists[0]),
            "deleted": msgspec.to_builtins(lists[1]),
            "manifest": msgspec.to_builtins(store.manifest("saved")),
            "streams": {name: blake3(content).hexdigest() for name, content in streams.items()},
        }
    (FILES / "store" / "lock").unlink()
    _write_json("expected.json", expected)


def _write_snapshots() -> None:
    """Write an archive of snapshots of real programs, and what is to be found after a resume."""
    # PR_SET_CHILD_SUBREAPER: the trees are to be found below this process.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    criu = criu_program.find()
    assert criu is not None, "run tools/install-criu"
    known: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="golden-", dir="/tmp") as path:
        settings = EngineSettings(criu=criu, spill_dir=Path(path) / "spill", threads=2)
        with LocalStore(Path(path) / "store") as store:
            for name in KINDS:
                known[name] = _suspended(name, store, settings, Path(path))
        with tarfile.open(FILES / "snapshots.tar", "w") as archive:
            for file in sorted((Path(path) / "store").glob("*/*")):
                archive.add(file, str(file.relative_to(Path(path) / "store")), filter=_of_nobody)
    _write_json("programs.json", known)


def _suspended(name: str, store: LocalStore, settings: EngineSettings, folder: Path) -> object:
    """Suspend a program; return what is known of it."""
    with ExitStack() as stack:
        driver = stack.enter_context(scripted_gpu()) if name == "gpu" else None
        tree, spec = stack.enter_context(launched(settings, folder, KINDS[name]))
        known = None if driver else asked(tree)
        options = manifest_records.SaveOptions(stop=True, name=name)
        saved = save(tree, spec, store, settings, options, progress=Progress())
        _check_says_nothing(saved.manifest, store)
        return driver.memory()._asdict() if driver else known


def _check_says_nothing(manifest: manifest_records.Manifest, store: LocalStore) -> None:
    """Fail if something of this machine is in a snapshot that everybody gets."""
    content = b"".join(read_stream(stream, store) for stream in manifest.streams)
    content += msgspec.json.encode(manifest)
    for word in (FILES.parents[2], Path.home()):
        assert f"{word}/".encode() not in content, word
    assert manifest.info.host_name == "golden", "it is to be run by `make golden`"


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member.replace(mtime=0, uid=0, gid=0, uname="", gname="", deep=False)


def _image(message: bytes) -> bytes:
    return bytes(8) + len(message).to_bytes(4, "little") + message


def _stored(store: LocalStore, streams: dict[str, bytes]) -> list[manifest_records.Stream]:
    found = []
    compressor = Compressor()
    with store.writer() as writer:
        for name, content in streams.items():
            chunks, start = [], 0
            for end in cut(memoryview(content)):
                piece = memoryview(content)[start:end]
                digest = b"" if is_zero(piece) else digest_of(piece)
                if digest:
                    codec, payload = compressor.compress(piece)
                    writer.append_all([Record(digest, bytes(payload), len(piece), codec)])
                chunks.append(manifest_records.Chunk(digest, len(piece)))
                start = end
            found.append(manifest_records.Stream(name, len(content), chunks))
    return found


def _manifest(
    snapshot_id: str, streams: list[manifest_records.Stream], images: int
) -> manifest_records.Manifest:
    end = manifest_records.TcpEnd(
        5,
        2,
        ["127.0.0.1", 4000],
        ["127.0.0.1", 4001],
        2,
        [manifest_records.SocketOption(1, 9, b"\1\0\0\0")],
        10,
    )
    variable = manifest_records.Variable("x", "ndarray", 65536, "8192 float64")
    files = [
        manifest_records.CapturedFile(
            one.name.removeprefix("file"), "file", 0o700, 1000, 1000, 1, "", one.name
        )
        for one in streams
        if one.name.startswith("file")
    ]
    return manifest_records.Manifest(
        info=manifest_records.SnapshotInfo(
            snapshot_id,
            "kernel",
            CREATED + len(snapshot_id),
            "suspend" if snapshot_id == "suspended" else "save",
            "notebook.ipynb",
            manifest_records.Sizes(200_000, 100_000, 50_000, 32_768),
            0.1,
            0.5,
            "host",
            manifest_records.Cause.IDLE,
            variables=[variable],
        ),
        launch=manifest_records.LaunchSpec(
            "kernel",
            ["python", "-m", "ipykernel"],
            {},
            "/home/jovyan",
            "/home/jovyan/log",
            own_ports=[4000],
            jupyter={"kernelspec": "python3"},
        ),
        host=manifest_records.Host(
            "host",
            "x86_64",
            "6.1",
            ["sse"],
            "580.1",
            [manifest_records.Gpu("GPU-1", "H200", 1 << 37)],
            "/home/jovyan",
            "boot",
        ),
        method="skeleton",
        keeper_pid=11,
        kernel_pid=12,
        highest_pid=12,
        processes=[
            manifest_records.Process(12, 11, "python", pages="pages/12", processors={12: [0]})
        ],
        images=[
            manifest_records.ImageFile("files.img", images - 18, 0),
            manifest_records.ImageFile("remap-fpath.img", 18, images - 18),
        ],
        streams=streams,
        captured=[
            *files,
            manifest_records.CapturedFile(f"{SHM}folder", "directory", 0o755),
            manifest_records.CapturedFile(f"{SHM}again", "hardlink", target=f"{SHM}doubles"),
            manifest_records.CapturedFile(f"{SHM}link", "symlink", 0o777, target="doubles"),
        ],
        gpu=[manifest_records.GpuProcess(12, [GPU], 32_768, {"GPU-1": 32_768})],
        mapped=[file_records.MappedFile("/usr/bin/python3", 5, "00", "11")],
        connections=[manifest_records.TcpConnection("127.0.0.1:4000", [end])],
        seconds_by_stage={"freeze": 0.1},
        variables=manifest_records.Variables([variable], {"x": "22"}, complete=True),
    )


def _write_record(state: Path) -> None:
    place = Place(1000, "boot", [1, 2, 3, 4], "0::/", "/home/jovyan/.local/share/jupyter/gpuckpt")
    record = KernelRecord(
        manifest_records.LaunchSpec("kernel", ["python"], {}, "/", "/log"),
        Owner("owner", OwnerKind.SERVER, 1, 1.0),
        place,
        KernelState.SUSPENDED,
        since=CREATED,
        snapshot_id="suspended",
    )
    Records(state, place).write("kernel", msgspec.json.encode(record))
    for name in ("exits", "places"):
        (state / name).rmdir()


if __name__ == "__main__":
    main()
