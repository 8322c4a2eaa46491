"""A kernel goes back with its files again and again: each time to equal states, and the daemon and its store do not grow."""

import pytest

from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.folder_records import STAGING, FolderRules
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.protocol import SaveRequest
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from jupyter_gpuckpt.wire.snapshot_records import PruneRequest
from tests.daemon.test_files_go_back import Followed, content, go_back
from tests.daemon.test_twenty_cycles import left_of, nothing_more

#: The states between which it goes, and how many snapshots are kept besides them.
STATES, KEPT = 3, 8


def suspended(client, kernel_id):
    """Suspend as a tool does, with the files."""
    request = SaveRequest(cause=Cause.TOOL)
    client.wait(client.send(calls.suspend(kernel_id, request)).operation_id)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_roll_backs_with_files_lead_to_equal_states(
    client, owner, spec, settings, short_dir, eventually, count
):
    followed = Followed(client, owner, spec, short_dir, eventually, FolderRules())
    kernel_id, pid = followed.kernel_id, client.send(calls.handshake()).pid
    followed.do("import random; random.seed(1)")
    followed.do("[open(f'file-{n}', 'wb').write(random.randbytes(5000)) for n in range(100)]")
    states = []
    for number in range(STATES):
        followed.do(
            f"x = {number}; open('file-{number}', 'wb').write(random.randbytes(200_000))"
            f"; os.mkdir('deep-{number}'); open('deep-{number}/file', 'w').write('{number}')"
        )
        request = SaveRequest(files=True, pinned=True)
        saved = client.wait(client.send(calls.save(kernel_id, request)).operation_id)
        states.append((saved.snapshot_id, content(followed.folder), followed.lines, number))
    early = {}
    for turn in range(count):
        snapshot_id, files, lines, x = states[turn % STATES]
        followed.do(
            f"open('file-{turn % 100}', 'wb').write(random.randbytes(9000 + {turn}))"
            f"; open('added', 'w').write('{turn}'); x = -1"
        )
        suspended(client, kernel_id)
        go_back(client, followed, snapshot_id, lines)
        client.send(calls.prune(PruneRequest(RetentionPolicy(keep_tool_saves=KEPT))))
        assert content(followed.folder) == files, turn
        eventually(lambda wanted=(lines, x): followed.says() == wanted)
        if turn == min(count // 2, 100):
            early = measured(client, pid, settings, short_dir)
    late = measured(client, pid, settings, short_dir)
    print(f"{count} roll backs: {early['numbers']} -> {late['numbers']}")
    assert len(client.send(calls.snapshots(kernel_id))) <= STATES + KEPT + 1
    assert not list(followed.folder.glob(f"{STAGING}*"))
    for name, allowed in {"resident": 40 << 20, "stored": 30 << 20}.items():
        assert late["numbers"][name] < early["numbers"][name] + allowed, (early, late)
    eventually(lambda: nothing_more(left_of(pid, settings.data, short_dir / "run"), early["left"]))


def measured(client, pid, settings, short_dir):
    """Return the daemon's memory and the store's, in bytes, and what the daemon has open and on the disk."""
    return {
        "numbers": {
            "resident": processes.resident_bytes(pid),
            "stored": client.send(calls.store()).stored_bytes,
        },
        "left": left_of(pid, settings.data, short_dir / "run"),
    }
