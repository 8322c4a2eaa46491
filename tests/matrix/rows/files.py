"""Files, memory maps, locks and databases."""

from tests.matrix.row import Row

CHAPTER = "Files and databases"
ROWS = [
    Row(
        "file-offset",
        "A file that is read and written, at an offset",
        """
f = open("data.txt", "w+")
f.write("line\\n" * 1000)
f.flush()
f.seek(500)
count = 100
""",
        """
assert f.readline() == "line\\n"
count += 1
assert f.tell() == 5 * count, f.tell()
""",
        quick=True,
    ),
    Row(
        "file-append",
        "A log file in append mode that others write as well",
        """
import logging
log = logging.getLogger("row")
log.addHandler(logging.FileHandler("log.txt"))
written = 0
""",
        """
log.warning("from the handler")
with open("log.txt", "a") as other:
    other.write("from elsewhere\\n")
written += 2
assert len(open("log.txt").readlines()) == written
""",
    ),
    Row(
        "file-buffer",
        "Bytes in Python's buffer that are not in the file yet",
        """
f = open("buffered.txt", "w")
total = 0
""",
        """
f.write("x" * 10)
total += 10
assert f.tell() == total
""",
    ),
    Row(
        "file-deleted",
        "An open file that was deleted",
        """
import os
f = open("gone.bin", "w+b")
f.write(b"abc" * 100)
f.flush()
os.unlink("gone.bin")
""",
        """
f.seek(0)
data = f.read()
assert data[:300] == b"abc" * 100
f.write(b"more")
f.flush()
assert os.fstat(f.fileno()).st_nlink == 0
""",
        quick=True,
    ),
    Row(
        "file-unnamed",
        "A file that never had a name (O_TMPFILE)",
        """
import os, tempfile
f = tempfile.TemporaryFile()
f.write(b"tmp" * 100)
f.flush()
""",
        """
f.seek(0)
assert f.read(300) == b"tmp" * 100
f.write(b"!")
f.flush()
""",
    ),
    Row(
        "file-directory",
        "An open directory, and files opened relative to it",
        """
import os
os.mkdir("folder")
directory = os.open("folder", os.O_RDONLY)
n = 0
""",
        """
n += 1
os.close(os.open(f"f{n}", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
assert len(os.listdir(directory)) == n
""",
    ),
    Row(
        "file-shared-description",
        "Two descriptors of one open file, which share an offset",
        """
import os
first = os.open("shared.bin", os.O_CREAT | os.O_RDWR)
os.write(first, bytes(1000))
second = os.dup(first)
""",
        """
os.lseek(first, 10, os.SEEK_SET)
assert os.lseek(second, 0, os.SEEK_CUR) == 10
""",
    ),
    Row(
        "file-renamed",
        "An open file that was renamed",
        """
import os
f = open("before.txt", "w+")
os.rename("before.txt", "after.txt")
n = 0
""",
        """
n += 1
f.write("x")
f.flush()
assert os.path.getsize("after.txt") == n
""",
    ),
    Row(
        "file-temporary-folder",
        "A temporary folder with its contents",
        """
import os, tempfile
folder = tempfile.TemporaryDirectory()
open(os.path.join(folder.name, "a"), "w").write("kept")
""",
        """
assert open(os.path.join(folder.name, "a")).read() == "kept"
""",
    ),
    Row(
        "file-fifo",
        "A named pipe with bytes in it",
        """
import os
os.mkfifo("fifo")
f = os.open("fifo", os.O_RDWR)
os.write(f, b"abc")
""",
        """
assert os.read(f, 3) == b"abc"
os.write(f, b"abc")
""",
    ),
    Row(
        "file-devices",
        "/dev/null, /dev/zero, /dev/urandom, /dev/full",
        """
devices = {name: open(f"/dev/{name}", "r+b", buffering=0) for name in ("null", "zero", "urandom")}
""",
        """
assert devices["null"].write(b"x") == 1 and devices["null"].read(1) == b""
assert devices["zero"].read(4) == bytes(4)
assert len(set(devices["urandom"].read(64))) > 5
""",
    ),
    Row(
        "file-gzip",
        "A gzip stream that is half read",
        """
import gzip
with gzip.open("x.gz", "wt") as out:
    out.writelines(f"{i}\\n" for i in range(100000))
stream = gzip.open("x.gz", "rt")
expected = 0
""",
        """
for _ in range(1000):
    assert int(next(stream)) == expected
    expected += 1
""",
    ),
    Row(
        "sqlite-wal",
        "SQLite in WAL mode, with a transaction that is open",
        """
import sqlite3
db = sqlite3.connect("rows.sqlite", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE t (n INTEGER)")
db.execute("BEGIN")
n = 0
""",
        """
n += 1
db.execute("INSERT INTO t VALUES (?)", (n,))
assert db.execute("SELECT COUNT(*) FROM t").fetchone() == (n,)
other = sqlite3.connect("rows.sqlite")
assert other.execute("SELECT COUNT(*) FROM t").fetchone() == (n - 1,), "it was not open"
other.close()
db.execute("COMMIT")
assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
db.execute("BEGIN")
""",
        quick=True,
    ),
    Row(
        "sqlite-memory",
        "SQLite in memory, with a cursor that is half read",
        """
import sqlite3
db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE t (n INTEGER)")
db.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(10000)])
cursor = db.execute("SELECT n FROM t ORDER BY n")
expected = 0
""",
        """
assert cursor.fetchone() == (expected,)
expected += 1
""",
    ),
    Row(
        "duckdb",
        "DuckDB with a database file",
        """
import duckdb
db = duckdb.connect("rows.duckdb")
db.execute("CREATE TABLE t (n INTEGER)")
n = 0
""",
        """
n += 1
db.execute("INSERT INTO t VALUES (?)", [n])
assert db.execute("SELECT COUNT(*), SUM(n) FROM t").fetchone() == (n, n * (n + 1) // 2)
""",
        needs=("duckdb",),
    ),
    Row(
        "h5py-swmr",
        "HDF5: a writer and a reader at a time (SWMR)",
        """
import h5py, numpy as np
writer = h5py.File("rows.h5", "w", libver="latest")
values = writer.create_dataset("v", (0,), maxshape=(None,), dtype="i8", chunks=(16,))
writer.swmr_mode = True
reader = h5py.File("rows.h5", "r", libver="latest", swmr=True)
n = 0
""",
        """
n += 1
values.resize((n,))
values[n - 1] = n
values.flush()
reader["v"].refresh()
assert list(reader["v"]) == list(range(1, n + 1))
""",
        needs=("h5py",),
    ),
    Row(
        "mmap-shared-file",
        "A file mapped shared and written",
        """
import mmap
f = open("map.bin", "w+b")
f.truncate(1 << 20)
m = mmap.mmap(f.fileno(), 0)
n = 0
""",
        """
assert m[0] == n
n += 1
m[0] = n
assert open("map.bin", "rb").read(1)[0] == n
""",
        quick=True,
    ),
    Row(
        "mmap-private-file",
        "A file mapped private and written",
        """
import mmap
open("map.bin", "wb").write(bytes(1 << 20))
f = open("map.bin", "r+b")
m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
n = 0
""",
        """
assert m[5000] == n
n += 1
m[5000] = n
assert open("map.bin", "rb").read() == bytes(1 << 20)
""",
    ),
    Row(
        "numpy-memmap",
        "numpy.memmap",
        """
import numpy as np
a = np.memmap("array.bin", dtype="f8", mode="w+", shape=(100_000,))
n = 0.0
""",
        """
assert (a == n).all()
a += 1
n += 1
a.flush()
assert (np.fromfile("array.bin") == n).all()
""",
    ),
    Row(
        "mmap-deleted-file",
        "A mapped file that was deleted",
        """
import mmap, os
f = open("gone.bin", "w+b")
f.truncate(1 << 16)
m = mmap.mmap(f.fileno(), 0)
os.unlink("gone.bin")
n = 0
""",
        """
assert m[0] == n
n += 1
m[0] = n
assert os.pread(f.fileno(), 1, 0)[0] == n
""",
    ),
    Row(
        "mmap-memfd",
        "A memfd, mapped twice",
        """
import mmap, os
d = os.memfd_create("row")
os.ftruncate(d, 1 << 16)
first, second = mmap.mmap(d, 0), mmap.mmap(d, 0)
n = 0
""",
        """
assert first[0] == second[0] == n
n += 1
first[0] = n
assert second[0] == n and os.pread(d, 1, 0)[0] == n
""",
        quick=True,
    ),
    Row(
        "mmap-anonymous-shared",
        "Anonymous memory shared with a child",
        """
import mmap, os, time
m = mmap.mmap(-1, 4096)
child = os.fork()
if not child:
    while True:
        if m[0]:
            m[1] = m[0]
        time.sleep(0.002)
n = 0
""",
        """
n += 1
m[0] = n
deadline = time.monotonic() + 120
while m[1] != n:
    assert time.monotonic() < deadline
    time.sleep(0.002)
""",
    ),
    Row(
        "lock-flock",
        "A file lock (flock), also against a child",
        """
import fcntl, subprocess, sys
f = open("lock", "w")
fcntl.flock(f, fcntl.LOCK_EX)
code = "import fcntl; fcntl.flock(open('lock', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
""",
        """
assert b"BlockingIOError" in subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE).stderr
""",
    ),
    Row(
        "lock-posix",
        "A POSIX record lock (fcntl)",
        """
import fcntl, subprocess, sys
f = open("lock", "w")
fcntl.lockf(f, fcntl.LOCK_EX)
code = "import fcntl; fcntl.lockf(open('lock', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
""",
        """
failed = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE).stderr
assert b"BlockingIOError" in failed or b"PermissionError" in failed, failed
""",
    ),
    Row(
        "lock-ofd",
        "A lock of an open file description (OFD)",
        """
import fcntl, struct, subprocess, sys
f = open("lock", "w+")
fcntl.fcntl(f, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
code = "import fcntl; fcntl.lockf(open('lock', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
""",
        """
failed = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE).stderr
assert b"BlockingIOError" in failed or b"PermissionError" in failed, failed
""",
    ),
    Row(
        "inotify",
        "A folder that is watched (inotify)",
        """
import ctypes, os, select
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("watched")
d = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(d, b"watched", 0x100) == 1  # IN_CREATE
n = 0
""",
        """
n += 1
open(f"watched/{n}", "w").close()
assert select.select([d], [], [], 100)[0]
assert f"{n}".encode() in os.read(d, 4096)
""",
    ),
    Row(
        "inotify-unread",
        "A watched folder (inotify) with events that were not read",
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("watched")
d = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(d, b"watched", 0x100) == 1  # IN_CREATE
open("watched/1", "w").close()
""",
        """
os.listdir("watched")
""",
        exception="the events are lost; a warning of the resume says so",
        warned="unread events of descriptor",
    ),
    Row(
        "directory-working",
        "A working directory that was changed, and a umask",
        """
import os
os.mkdir("below")
os.chdir("below")
os.umask(0o027)
where = os.getcwd()
""",
        """
assert os.getcwd() == where
open("f", "w").close()
assert os.stat("f").st_mode & 0o777 == 0o640
os.unlink("f")
""",
    ),
    Row(
        "rlimits",
        "Resource limits",
        """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
""",
        """
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
assert resource.getrlimit(resource.RLIMIT_STACK)[0] == 4 << 20
""",
    ),
]
