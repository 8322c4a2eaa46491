"""The files of the working folder go back with a kernel: by a resume from an older snapshot, which can fail or be killed at each step."""

import os
import sys
from contextlib import suppress

import msgspec
import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import DaemonUnavailable, GpuCkptError
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.folder_records import STAGING, FolderRules
from jupyter_gpuckpt.wire.progress import Stage
from jupyter_gpuckpt.wire.protocol import SaveRequest
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon.test_crashes_at_every_step import Dying

RULES = FolderRules(is_saved=True)
#: Does what lines of its input file say, and says the value of `x`. The files tell which state they are of.
FOLLOWER = """
import os, sys, time
x, done, control = 0, 0, sys.argv[1]
while True:
    with open(control) as file:
        lines = file.read().splitlines()
    if len(lines) > done:
        exec(lines[done])
        done += 1
    with open(control + ".says.new", "w") as file:
        file.write(f"{done} {x}")
    os.rename(control + ".says.new", control + ".says")
    time.sleep(0.01)
"""


class Followed:
    """A kernel that does what it is told, in a folder of its own."""

    def __init__(self, client, owner, spec, short_dir, eventually, rules=RULES):
        self.folder = short_dir / "folder"
        self.folder.mkdir()
        self._control = short_dir / "control"
        self._control.write_text("")
        self._eventually = eventually
        made = msgspec.structs.replace(
            spec([sys.executable, "-c", FOLLOWER, str(self._control)]),
            cwd=str(self.folder),
            working_folder=rules,
        )
        self.kernel_id = client.send(calls.launch(owner.owner_id, made)).kernel_id
        self._eventually(self.says)

    def says(self):
        with suppress(FileNotFoundError, ValueError):
            done, x = (self._control.with_name("control.says")).read_text().split()
            return int(done), int(x)
        return None

    def do(self, line):
        """Have it do a line of code; return when it is done."""
        lines = [*self._control.read_text().splitlines(), line]
        self._control.with_name("control.new").write_text("\n".join(lines) + "\n")
        self._control.with_name("control.new").rename(self._control)
        self._eventually(lambda: self.says() and self.says()[0] >= len(lines))

    def forget_lines_after(self, count):
        """Take lines back that it had not done at an earlier state, so that it does not do them again."""
        kept = self._control.read_text().splitlines()[:count]
        self._control.write_text("".join(f"{line}\n" for line in kept))

    @property
    def lines(self):
        return len(self._control.read_text().splitlines())


def content(folder):
    """Return everything in a folder: kinds, modes, times and bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = path.stat().st_mode
        else:
            status = path.stat()
            found[name] = (status.st_mode, status.st_mtime_ns, path.read_bytes())
    return found


def go_back(client, followed, snapshot_id, lines):
    """Resume a snapshot with its files; the kernel has done so many lines in it. Return the result."""
    followed.forget_lines_after(lines)
    return take(client, "resume", followed.kernel_id, snapshot_id=snapshot_id, files="restore")


def take(client, verb, kernel_id, **fields):
    """Do a verb and wait for its end; return the result."""
    return client.wait(client.send(getattr(calls, verb)(kernel_id, **fields)).operation_id)


#: The files of the first state, and what makes the second of them.
FIRST = [
    "open('same', 'w').write('same')",
    "open('changed', 'w').write('then')",
    "open('removed', 'w').write('removed')",
    "os.makedirs('deep/er'); open('deep/er/file', 'w').write('deep')",
    "os.symlink('same', 'link'); os.chmod('same', 0o640)",
    "open('becomes-folder', 'w').write('a file')",
    "os.mkdir('becomes-file'); open('becomes-file/in-it', 'w').write('in it')",
    "x = 1",
]
SECOND = [
    "open('changed', 'w').write('now, and longer')",
    "os.unlink('removed'); open('added', 'w').write('added')",
    "import shutil; shutil.rmtree('deep'); os.mkdir('new'); open('new/file', 'w').write('new')",
    "os.unlink('link'); os.symlink('added', 'link'); os.chmod('same', 0o600)",
    "os.unlink('becomes-folder'); os.mkdir('becomes-folder'); open('becomes-folder/x', 'w').write('x')",
    "shutil.rmtree('becomes-file'); open('becomes-file', 'w').write('a file now')",
    "x = 2",
]


@pytest.fixture
def followed(client, owner, spec, short_dir, eventually):
    return Followed(client, owner, spec, short_dir, eventually)


def two_states(client, followed):
    """Take the kernel to its first state, save that, and take it to the second; return the snapshot and both contents."""
    for line in FIRST:
        followed.do(line)
    before = content(followed.folder)
    snapshot_id = take(client, "save", followed.kernel_id).snapshot_id
    first = followed.lines
    for line in SECOND:
        followed.do(line)
    after = content(followed.folder)
    assert before != after
    return snapshot_id, before, after, first


def test_files_go_back_and_forth(client, followed, eventually):
    snapshot_id, before, after, first = two_states(client, followed)
    kernel_id = followed.kernel_id
    same = (followed.folder / "same").stat().st_ino
    kept = take(client, "suspend", kernel_id).snapshot_id
    assert content(followed.folder) == after
    done = go_back(client, followed, snapshot_id, first)
    assert "replaced" not in " ".join(done.warnings)
    assert content(followed.folder) == before
    assert (followed.folder / "same").stat().st_ino == same  # only what differs is written
    eventually(lambda: followed.says() == (first, 1))
    followed.do("open('again', 'w').write('again')")
    take(client, "suspend", kernel_id)
    take(client, "resume", kernel_id, snapshot_id=kept, files="restore")
    assert content(followed.folder) == after
    # Without a word about files they stay.
    take(client, "suspend", kernel_id)
    followed.forget_lines_after(first)
    take(client, "resume", kernel_id, snapshot_id=snapshot_id)
    assert content(followed.folder) == after


def test_files_that_changed_while_it_was_suspended_are_in_a_snapshot(client, followed):
    snapshot_id, before, _, first = two_states(client, followed)
    kernel_id = followed.kernel_id
    take(client, "suspend", kernel_id)
    (followed.folder / "by-hand").write_text("by hand")
    after = content(followed.folder)
    count = len(client.send(calls.snapshots(kernel_id)))
    go_back(client, followed, snapshot_id, first)
    assert content(followed.folder) == before
    made = client.send(calls.snapshots(kernel_id))
    assert len(made) == count + 1
    assert made[0].has_files
    take(client, "suspend", kernel_id)
    take(client, "resume", kernel_id, snapshot_id=made[0].snapshot_id, files="restore")
    assert content(followed.folder) == after


def test_what_is_left_out_stays(client, followed):
    (followed.folder / ".gitignore").write_text("*.big\n")
    (followed.folder / "work.ipynb").write_text("then")
    (followed.folder / "data.big").write_text("then")
    (followed.folder / "mixed").mkdir()
    (followed.folder / "mixed" / "data.big").write_text("then")
    snapshot_id = take(client, "save", followed.kernel_id).snapshot_id
    (followed.folder / "work.ipynb").write_text("now")
    (followed.folder / "data.big").write_text("now")
    (followed.folder / "new.big").write_text("now")
    (followed.folder / "new-mixed").mkdir()
    (followed.folder / "new-mixed" / "data.big").write_text("now")
    (followed.folder / "new-mixed" / "plain").write_text("now")
    # From now on another rule holds: what was saved is left out.
    (followed.folder / ".gitignore").write_text("*.big\nplain\n")
    take(client, "suspend", followed.kernel_id)
    take(client, "resume", followed.kernel_id, snapshot_id=snapshot_id, files="restore")
    found = {
        str(path.relative_to(followed.folder)): path.read_text()
        for path in followed.folder.rglob("*")
        if path.is_file()
    }
    assert found == {
        ".gitignore": "*.big\n",
        "work.ipynb": "now",
        "data.big": "now",
        "new.big": "now",
        "mixed/data.big": "then",
        "new-mixed/data.big": "now",
        "new-mixed/plain": "now",
    }


def test_a_resume_that_fails_brings_the_former_files_back(client, followed, eventually):
    snapshot_id, before, after, first = two_states(client, followed)
    kernel_id = followed.kernel_id
    take(client, "suspend", kernel_id)
    log = followed.folder.parent / f"{kernel_id}.log"
    log.unlink()
    log.mkdir()  # where its log is to be
    with pytest.raises(GpuCkptError):
        go_back(client, followed, snapshot_id, first)
    assert content(followed.folder) == after
    assert not list(followed.folder.glob(f"{STAGING}*"))
    log.rmdir()
    go_back(client, followed, snapshot_id, first)
    assert content(followed.folder) == before
    eventually(lambda: followed.says() == (first, 1))


def test_a_mapped_file_that_was_removed_comes_back(client, followed, eventually):
    """By the file and by the memory that maps it; without files the resume is refused."""
    followed.do(
        "import mmap; f = open('m', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)"
    )
    followed.do("m[:4] = b'then'; x = m[0]")
    snapshot_id = take(client, "save", followed.kernel_id).snapshot_id
    lines = followed.lines
    followed.do("m[:4] = b'nows'; os.unlink('m')")
    take(client, "suspend", followed.kernel_id)
    (found,) = [
        one
        for one in client.send(calls.changes(snapshot_id)).files
        if one.path == str(followed.folder / "m")
    ]
    assert found.change == "missing"
    with_files = client.send(calls.changes(snapshot_id, files=True))
    assert str(followed.folder / "m") not in [one.path for one in with_files.files]
    assert not with_files.obstacles
    go_back(client, followed, snapshot_id, lines)
    assert (followed.folder / "m").read_bytes()[:4] == b"then"
    followed.do("m[:4] = b'more'; x = 5")
    assert (followed.folder / "m").read_bytes()[:4] == b"more"


def test_a_snapshot_without_files_says_so(client, owner, spec, short_dir, eventually):
    followed = Followed(client, owner, spec, short_dir, eventually, FolderRules())
    followed.do("open('a', 'w').write('then')")
    snapshot_id = take(client, "save", followed.kernel_id).snapshot_id
    request = SaveRequest(files=True)
    with_files = client.wait(
        client.send(calls.save(followed.kernel_id, request)).operation_id
    ).snapshot_id
    followed.do("open('a', 'w').write('now')")
    take(client, "suspend", followed.kernel_id)
    done = go_back(client, followed, snapshot_id, 1)
    assert "does not have the files" in " ".join(done.warnings)
    assert (followed.folder / "a").read_text() == "now"
    take(client, "suspend", followed.kernel_id)
    go_back(client, followed, with_files, 1)
    assert (followed.folder / "a").read_text() == "then"


RESTORE = "jupyter_gpuckpt.snapshots.working_folder.folder_restores.FolderRestore."
#: Moments of a resume with files: the former files are there at first, and the new ones when the kernel's record says so.
MOMENTS = [
    "jupyter_gpuckpt.store.staging.Staged.publish",
    *(
        RESTORE + name
        for name in ("_write", "prepare", "_take", "_remove", "_make", "_put", "_set")
    ),
    RESTORE + "apply",
    "jupyter_gpuckpt.engine.tree.launch.Namespaces.go",
    *(str(stage) for stage in (Stage.RESTORE, Stage.AUDIT, Stage.LET_GO)),
    RESTORE + "finish",
]
METHODS = [moment for moment in MOMENTS if "." in moment]


@pytest.fixture
def dying(settings, short_dir, eventually):
    made = Dying(settings, short_dir / "die-at", eventually, METHODS)
    yield made
    made.end()


#: Those of every run: in the middle of the steps, and when only the record is missing.
_FIRST = [RESTORE + "_put", str(Stage.LET_GO)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "moments",
    [
        _FIRST,
        pytest.param([one for one in MOMENTS if one not in _FIRST], marks=pytest.mark.slow),
    ],
    ids=["first", "others"],
)
def test_a_daemon_killed_at_each_step_leaves_old_or_new_of_both(
    settings, dying, owner_of, spec, short_dir, eventually, moments
):
    """One kernel for all moments, each time back to its first state: both are old, or both are new; then it goes back for real."""
    with Client.connect(settings) as client, owner_of(client) as owner:
        followed = Followed(client, owner, spec, short_dir, eventually)
        snapshot_id, before, _, first = two_states(client, followed)
    kernel_id = followed.kernel_id
    daemons = [dying]
    try:
        for number, moment in enumerate(moments):
            with Client.connect(settings) as client:
                if number:  # else it is in its second state
                    followed.do("; ".join(SECOND))
                take(client, "suspend", kernel_id)
                # So that the present state has files that no snapshot has.
                (followed.folder / "by-hand").write_text(moment)
                after = content(followed.folder)
                daemons[-1].at(moment)
                with suppress(DaemonUnavailable):
                    followed.forget_lines_after(first)
                    client.send(calls.resume(kernel_id, snapshot_id, files="restore"))
                daemons[-1].wait()
            daemons.append(Dying(settings, short_dir / "die-at", eventually, METHODS))
            with Client.connect(settings) as client:
                found = client.send(calls.kernel(kernel_id))
                is_new = found.state is KernelState.RUNNING
                assert is_new == moment.endswith("finish"), (moment, found.state)
                assert content(followed.folder) == (before if is_new else after), moment
                assert not list(followed.folder.glob(f"{STAGING}*")), moment
                if not is_new:
                    go_back(client, followed, snapshot_id, first)
                assert content(followed.folder) == before, moment
                eventually(lambda: followed.says() == (first, 1))
    finally:
        for one in daemons:
            one.end()
