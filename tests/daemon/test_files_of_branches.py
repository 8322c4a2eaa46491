"""Branches have a working folder of their own, at the original's path: what one writes the others do not see."""

import os
import signal
import uuid

import pytest

from jupyter_gpuckpt.errors import KernelStateConflict
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.folder_records import FolderRules
from jupyter_gpuckpt.wire.protocol import BranchRequest
from jupyter_gpuckpt.wire.tool_branches import branch_name
from tests.daemon.test_files_go_back import Followed, content, take


@pytest.fixture
def followed(client, owner, spec, short_dir, eventually):
    """Return a kernel that holds a file open and a path in memory, in a folder with things that are left out."""
    made = Followed(client, owner, spec, short_dir, eventually)
    (made.folder / ".gitignore").write_text("*.big\ndata/\n")
    (made.folder / "shared.big").write_text("shared")
    (made.folder / "data").mkdir()
    (made.folder / "data" / "table").write_text("table")
    made.do(
        "open('text', 'w').write('base'); os.mkdir('deep'); open('deep/other', 'w').write('base')"
    )
    made.do("held = open('text', 'r+'); path = os.path.abspath('text'); os.chdir('deep')")
    return made


class Branched(Followed):
    """A branch of a followed kernel, with lines of its own."""

    def __init__(self, client, owner, followed, snapshot_id, eventually):
        self.folder, self._eventually = followed.folder, eventually
        # It goes on with the same files outside of the folder, so each follows the lines that are for it.
        self._control = followed._control
        self.kernel_id = str(uuid.uuid4())
        name = branch_name("work.ipynb", followed.kernel_id, self.kernel_id)
        request = BranchRequest(owner.owner_id, snapshot_id, self.kernel_id, [], name)
        client.send(calls.branch(request))
        #: What its first resume told.
        self.warnings = take(client, "resume", self.kernel_id).warnings


def test_a_branch_writes_to_its_own_folder_and_is_merged(
    client, owner, followed, settings, eventually
):
    kernel_id, folder = followed.kernel_id, followed.folder
    snapshot_id = take(client, "save", kernel_id).snapshot_id
    before = content(folder)
    take(client, "suspend", kernel_id)
    branch = Branched(client, owner, followed, snapshot_id, eventually)
    assert "replaced" not in " ".join(branch.warnings)
    # By the open file, by the absolute path in memory, by the current directory.
    branch.do("held.seek(0); held.write('held'); held.flush()")
    branch.do("open(path + '.new', 'w').write('path'); open('other', 'w').write('cwd')")
    branch.do("open('../shared.big', 'a').write(' by the branch')")
    branch.do("x = len(os.listdir('../data')) + (open('../data/table').read() == 'table')")
    eventually(lambda: branch.says()[1] == 2)
    assert (folder / "shared.big").read_text() == "shared by the branch"
    (folder / "shared.big").write_text("shared")
    after = content(folder)
    assert {name: one for name, one in after.items() if name != "shared.big"} == {
        name: one for name, one in before.items() if name != "shared.big"
    }
    # It is suspended, resumed and saved with its files.
    take(client, "suspend", branch.kernel_id)
    take(client, "resume", branch.kernel_id)
    branch.do("x = held.seek(0) or len(held.read()) + len(open(path + '.new').read())")
    eventually(lambda: branch.says()[1] == 8)
    compared = client.send(calls.compare_files(snapshot_id, branch.kernel_id))
    assert [(one.path, one.change, one.diff) for one in compared.files] == [
        ("deep/other", "changed", "@@ -1 +1 @@\n-base\n+cwd"),
        ("text", "changed", "@@ -1 +1 @@\n-base\n+held"),
        ("text.new", "added", ""),
    ]
    kept = take(client, "suspend", branch.kernel_id).snapshot_id
    client.send(calls.kill(branch.kernel_id))
    eventually(lambda: not list(settings.data.glob("folders/*/*")))
    # The original's kernel goes on with its state and what it changed; another file was changed there meanwhile.
    (folder / "mine").write_text("mine")
    take(client, "resume", kernel_id, snapshot_id=kept, files="merge")
    found = {name: one[2] for name, one in content(folder).items() if isinstance(one, tuple)}
    assert found == {
        ".gitignore": b"*.big\ndata/\n",
        "data/table": b"table",
        "deep/other": b"cwd",
        "mine": b"mine",
        "shared.big": b"shared",
        "text": b"held",
        "text.new": b"path",
    }
    # It is lost, with files that no snapshot of it has: these are saved before others take their place.
    os.kill(client.send(calls.kernel(kernel_id)).init_pid, signal.SIGKILL)
    eventually(lambda: client.send(calls.kernel(kernel_id)).state == "lost")
    (folder / "after").write_text("after")
    before = content(folder)
    take(client, "resume", kernel_id, snapshot_id=snapshot_id, files="restore")
    assert not (folder / "after").exists()
    newest = client.send(calls.snapshots(kernel_id))[0]
    assert newest.has_files
    take(client, "suspend", kernel_id)
    take(client, "resume", kernel_id, snapshot_id=newest.snapshot_id, files="restore")
    after = content(folder)
    del before["shared.big"], after["shared.big"]
    assert after == before


def test_a_conflict_is_named_and_changes_nothing(client, owner, followed, eventually):
    kernel_id, folder = followed.kernel_id, followed.folder
    snapshot_id = take(client, "save", kernel_id).snapshot_id
    take(client, "suspend", kernel_id)
    branch = Branched(client, owner, followed, snapshot_id, eventually)
    branch.do("open(path, 'w').write('theirs'); open('other', 'w').write('theirs')")
    kept = take(client, "suspend", branch.kernel_id).snapshot_id
    client.send(calls.kill(branch.kernel_id))
    (folder / "text").write_text("ours")
    before = content(folder)
    with pytest.raises(KernelStateConflict, match="text"):
        take(client, "resume", kernel_id, snapshot_id=kept, files="merge")
    assert content(folder) == before
    take(client, "resume", kernel_id, snapshot_id=kept, files="restore")
    assert (folder / "text").read_text() == "theirs"
    assert (folder / "deep" / "other").read_text() == "theirs"


def test_a_branch_without_files_shares_the_folder(client, owner, spec, short_dir, eventually):
    followed = Followed(client, owner, spec, short_dir, eventually, FolderRules())
    snapshot_id = take(client, "save", followed.kernel_id).snapshot_id
    take(client, "suspend", followed.kernel_id)
    branch = Branched(client, owner, followed, snapshot_id, eventually)
    branch.do("open('text', 'w').write('shared')")
    assert (followed.folder / "text").read_text() == "shared"
