"""What a record means to a daemon that did not write it."""

import fcntl
import os
import shutil
import subprocess
import time

import msgspec
import pytest

from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord, Records
from jupyter_gpuckpt.daemon.kernels.recovered import recovered
from jupyter_gpuckpt.daemon.kernels.verbs import check_kernel_id
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.errors import (
    ConfigurationError,
    DaemonUnavailable,
    SessionHeld,
    SessionLost,
    SnapshotNotFound,
)
from jupyter_gpuckpt.linux.file_locks import holding
from jupyter_gpuckpt.wire import place
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec, SnapshotInfo
from jupyter_gpuckpt.wire.protocol import Owner, OwnerKind
from jupyter_gpuckpt.wire.states import KernelState as S

NOW = 1000.0
TREE = Tree(10, 1, 11, 2, 12, 3, "/x")
OWNER = Owner("o", OwnerKind.SERVER, 1, 1.0)


@pytest.fixture
def here(tmp_path):
    return place.this_place(tmp_path)


@pytest.fixture
def elsewhere(here):
    """Return a container on the same machine, whose processes cannot be seen from here."""
    return msgspec.structs.replace(here, namespaces=[1, *here.namespaces[1:]])


def make(here, state, **fields):
    spec = LaunchSpec(fields.pop("kernel_id", "k"), ["x"], {}, "/", "/x")
    return KernelRecord(spec, OWNER, here, state=state, since=NOW, **fields)


#: An earlier snapshot, and those that the record names. Their clock was set back meanwhile.
OLD = SnapshotInfo("old", "k", NOW + 1, "suspend", number=1)
SAVED = SnapshotInfo("new", "k", NOW - 1, "save", number=2)
SUSPENDED = msgspec.structs.replace(SAVED, reason="suspend")


@pytest.mark.parametrize(
    ("state", "alive", "snapshots", "becomes"),
    [
        (S.STARTING, False, [], None),
        (S.RUNNING, True, [], S.RUNNING),
        (S.RUNNING, False, [], S.LOST),
        (S.RUNNING, False, [OLD], S.LOST),
        (S.SAVING, True, [], S.RUNNING),
        (S.SAVING, False, [SAVED], S.LOST),
        (S.SUSPENDING, True, [], S.RUNNING),
        (S.SUSPENDING, True, [OLD], S.RUNNING),
        (S.SUSPENDING, True, [SUSPENDED], S.SUSPENDED),
        (S.SUSPENDING, False, [SUSPENDED, OLD], S.SUSPENDED),
        (S.SUSPENDING, False, [OLD], S.LOST),
        (S.SUSPENDED, False, [], S.SUSPENDED),
        (S.LOST, False, [], S.LOST),
    ],
)
def test_a_state_becomes_what_is_true(here, state, alive, snapshots, becomes):
    record = recovered(make(here, state, tree=TREE, making="new"), alive=alive, snapshots=snapshots)
    assert (record and record.state) == becomes
    if record and record.state is S.LOST and state is not S.LOST:
        assert record.error.code == "kernel_lost"


@pytest.mark.parametrize("before", [S.SUSPENDED, S.LOST])
def test_a_resume_that_was_cut_off_leaves_what_was_before(here, before):
    record = make(here, S.RESUMING, previous=before, snapshot_id="s")
    assert recovered(record, alive=False, snapshots=[]).state is before


@pytest.mark.parametrize("state", [S.RUNNING, S.SAVING, S.SUSPENDING])
def test_a_kernel_that_ended_by_itself_is_forgotten(here, tmp_path, state):
    (tmp_path / "exit").write_text("0")
    record = make(here, state, tree=TREE, exit_path=str(tmp_path / "exit"))
    assert recovered(record, alive=False, snapshots=[]) is None


def test_a_record_comes_back_as_it_was(here, tmp_path):
    records = Records(tmp_path, here)
    record = make(here, S.RUNNING, tree=TREE, jupyter={"sessions": [{"path": "a.ipynb"}]})
    records.write("k", msgspec.json.encode(record))
    assert records.mine() == [record]
    assert (tmp_path / "kernels/k/record.json").stat().st_mode & 0o777 == 0o600
    records.forget("k")
    assert records.mine() == []
    assert not (tmp_path / "kernels/k").exists()


def test_a_record_that_cannot_be_read_hides_no_other(here, tmp_path, caplog):
    records = Records(tmp_path, here)
    records.write("k", msgspec.json.encode(make(here, S.RUNNING)))
    whole = msgspec.json.encode(make(here, S.RUNNING, name="a" * 100))
    for name, content in (
        ("bad", b'{"spec": {"env": {"TOKEN": "secret"}}'),
        ("text", whole.replace(b"a" * 100, b"\xff" * 100)),
        ("deep", b"[" * 100_000),
        ("anothers", whole),
    ):
        records.write(name, content)
    assert [record.kernel_id for record in records.mine()] == ["k"]
    for name in ("bad", "text", "deep", "anothers"):
        assert f"kernels/{name}/record.json" in caplog.text
    assert "secret" not in caplog.text


def test_what_a_killed_daemon_was_just_writing_is_removed(here, tmp_path):
    records = Records(tmp_path, here)
    records.write("k", msgspec.json.encode(make(here, S.SUSPENDED)))
    for kernel_id, age in (("k", 3600), ("gone", 3600), ("young", 0)):
        path = tmp_path / "kernels" / kernel_id / ".unfinished-record.json.1234"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    records.hold()
    left = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "kernels").rglob("*"))
    assert left == [
        "kernels/k",
        "kernels/k/record.json",
        "kernels/young",
        "kernels/young/.unfinished-record.json.1234",
    ]
    records.release()


def test_what_is_being_written_stays_although_it_seems_old(here, tmp_path):
    """Its machine's clock was set forward a moment ago, or its file server's is behind."""
    records = Records(tmp_path, here)
    path = tmp_path / "kernels" / "k" / ".unfinished-record.json.1234"
    path.parent.mkdir()
    path.touch()
    os.utime(path, (time.time() - 3600,) * 2)
    with holding(path):
        records.hold()
    assert path.exists()
    records.release()


def test_the_last_exit_statuses_stay_when_the_clock_is_set_forward(here, tmp_path):
    records = Records(tmp_path, here)
    year = 365 * 86_400.0
    for number in range(120):
        path = tmp_path / "exits" / f"k-{number}"
        path.write_text("0")
        os.utime(path, (time.time() - year + number,) * 2)
    records.hold()
    left = sorted(int(path.name[2:]) for path in (tmp_path / "exits").iterdir())
    assert left == list(range(20, 120))
    records.release()


def test_two_daemons_of_one_place_refuse_each_other(here, tmp_path):
    Records(tmp_path, here).hold()
    with pytest.raises(DaemonUnavailable):
        Records(tmp_path, here).hold()


def everything(record):
    return True


def nothing(record):
    """Bring no snapshots: the records are written without any."""


def encoded(record):
    return msgspec.json.encode(record)


def written(tmp_path, record):
    """Write a record as its own daemon does, which has been killed since."""
    records = Records(tmp_path, record.place)
    records.write("k", encoded(record), record.state)
    return records


def taken_over(tmp_path, here):
    records = Records(tmp_path, here)
    taken = records.take_over(everything, nothing)
    assert all(record.place == here for record in taken)
    assert len(records.mine()) == len(taken)
    return bool(taken)


def age_heartbeats(tmp_path, seconds):
    """Have all heartbeats written so long ago, by the file server's time."""
    for path in (tmp_path / "shared/heartbeats").iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.parametrize("state", [S.RUNNING, S.SUSPENDED])
def test_a_place_whose_daemon_left_is_taken_over(here, elsewhere, tmp_path, state):
    records = Records(tmp_path, elsewhere)
    records.hold()
    records.write("k", encoded(make(elsewhere, state)), state)
    records.release()
    assert taken_over(tmp_path, here)


@pytest.mark.parametrize("state", [S.RUNNING, S.SUSPENDED])
def test_a_place_whose_daemon_lives_is_left_alone(here, elsewhere, tmp_path, state):
    """Its server has not left either."""
    written(tmp_path, make(elsewhere, state)).hold()
    assert not taken_over(tmp_path, here)


@pytest.mark.parametrize(
    ("state", "age", "expected"),
    [(S.RUNNING, 0, False), (S.RUNNING, 100, True), (S.SUSPENDED, 0, True)],
)
def test_a_killed_daemon_keeps_its_running_kernels_for_a_while(
    here, elsewhere, tmp_path, state, age, expected
):
    written(tmp_path, make(elsewhere, state))
    (tmp_path / "places" / f"{elsewhere.key}.lock").touch()
    if age:
        age_heartbeats(tmp_path, age)
    assert taken_over(tmp_path, here) is expected


def test_running_kernels_that_can_be_seen_are_taken_over_at_once(here, tmp_path):
    other_cgroup = msgspec.structs.replace(here, cgroup="0::/another")
    written(tmp_path, make(other_cgroup, S.RUNNING))
    (tmp_path / "places" / f"{other_cgroup.key}.lock").touch()
    assert taken_over(tmp_path, here)


@pytest.mark.parametrize("minutes", [10, -10])
def test_a_running_kernel_is_never_taken_from_a_live_daemon_whose_clock_differs(
    here, elsewhere, tmp_path, monkeypatch, minutes
):
    """Nor where its lock cannot be seen: it holds none here."""
    other = written(tmp_path, make(elsewhere, S.RUNNING))
    (tmp_path / "places" / f"{elsewhere.key}.lock").touch()
    other.beat()
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 60 * minutes)
    assert not taken_over(tmp_path, here)


def test_a_suspended_kernel_goes_where_a_user_resumes_it_and_its_daemon_learns_it(
    here, elsewhere, tmp_path
):
    first, second = written(tmp_path, make(elsewhere, S.RUNNING)), Records(tmp_path, here)
    first.hold()
    with pytest.raises(SessionHeld, match="is running on another machine"):
        second.take("k", nothing)
    first.write("k", encoded(make(elsewhere, S.SUSPENDED)), S.SUSPENDED)
    taken = second.take("k", nothing)
    assert (taken.place, taken.state) == (here, S.SUSPENDED)
    assert second.take("unknown", nothing) is None
    # Nothing of the first can be written, removed or begun any more.
    resuming = make(elsewhere, S.RESUMING)
    with pytest.raises(SessionHeld):
        first.write("k", encoded(resuming), S.RESUMING)
    second.write("k", encoded(taken), S.SUSPENDED)
    with pytest.raises(SessionLost):
        first.write("k", encoded(resuming), S.RESUMING)
    assert first.moved() == ["k"]
    first.forget("k")
    assert second.mine() == [taken]
    with pytest.raises(SessionHeld):
        first.write("k", encoded(make(elsewhere, S.STARTING)), S.STARTING)
    # And back.
    second.hold()
    assert first.take("k", nothing).place == elsewhere
    first.release()
    second.release()


def test_what_brings_its_snapshot_fails_and_the_kernel_stays(here, elsewhere, tmp_path):
    first, second = written(tmp_path, make(elsewhere, S.SUSPENDED)), Records(tmp_path, here)

    def fail(record):
        raise SnapshotNotFound("It is nowhere.")

    with pytest.raises(SnapshotNotFound):
        second.take("k", fail)
    assert second.take_over(everything, fail) == []
    assert [record.place for record in second.all()] == [elsewhere]
    assert first.moved() == []
    first.write("k", encoded(make(elsewhere, S.RESUMING)), S.RESUMING)
    with pytest.raises(SessionHeld):
        second.take("k", fail)


def test_a_daemon_that_stood_still_goes_on_with_a_branch(here, elsewhere, tmp_path):
    first = written(tmp_path, make(elsewhere, S.RUNNING))
    (tmp_path / "places" / f"{elsewhere.key}.lock").touch()
    age_heartbeats(tmp_path, 100)
    second = Records(tmp_path, here)
    [taken] = second.take_over(everything, nothing)
    running = make(elsewhere, S.RUNNING, name="still")
    first.write("k", encoded(running))
    assert first.lost()["k"].code == "session_lost"
    assert first.lost() == {}
    assert second.all() == [taken]
    # The next daemon of that place finds its own.
    again = Records(tmp_path, elsewhere)
    assert again.mine() == [running]
    again.forget("k")
    assert Records(tmp_path, elsewhere).mine() == []
    assert second.all() == [taken]


def test_a_late_heartbeat_finds_out_what_was_taken_over(here, elsewhere, tmp_path, monkeypatch):
    first = written(tmp_path, make(elsewhere, S.RUNNING))
    (tmp_path / "places" / f"{elsewhere.key}.lock").touch()
    first.beat()
    assert first.lost() == {}
    age_heartbeats(tmp_path, 100)
    assert Records(tmp_path, here).take_over(everything, nothing)
    monkeypatch.setattr(first._leases._leases, "_good_until", 0.0)
    first.beat()
    assert list(first.lost()) == ["k"]


def test_a_damaged_lease_costs_nothing(here, tmp_path, caplog):
    first = Records(tmp_path, here)
    first.write("k", encoded(make(here, S.RUNNING)))
    assert first.lost() == {}
    (tmp_path / "shared/sessions/k").write_bytes(b"")
    assert [record.kernel_id for record in Records(tmp_path, here).mine()] == ["k"]
    assert "sessions/k in the data directory is damaged" in caplog.text
    # One that runs goes on beside whoever may have it.
    (tmp_path / "shared/sessions/k").write_bytes(b"")
    first.write("k", encoded(make(here, S.RUNNING)))
    assert list(first.lost()) == ["k"]


@pytest.fixture
def views(tmp_path):
    """Return two ways into one folder, whose file locks do not reach each other."""
    if shutil.which("bindfs") is None or os.geteuid():
        pytest.skip("bindfs makes file systems without shared locks")
    (tmp_path / "home").mkdir()
    found = [tmp_path / "one", tmp_path / "two"]
    for view in found:
        view.mkdir()
        subprocess.run(["bindfs", tmp_path / "home", view], check=True)
    yield found
    for view in found:
        subprocess.run(["umount", view], check=True)


def test_where_locks_do_not_reach_other_hosts_nothing_is_taken_and_the_file_system_is_named(
    here, elsewhere, views
):
    first, second = Records(views[0], elsewhere), Records(views[1], here)
    first.hold()
    second.hold()  # for the time of its own
    first.write("k", encoded(make(elsewhere, S.SUSPENDED)), S.SUSPENDED)
    first.beat()
    with pytest.raises(SessionHeld, match=r"locks do not reach .* \(fuse\)"):
        second.take("k", nothing)
    assert second.take_over(everything, nothing) == []
    assert [record.place for record in second.all()] == [elsewhere]
    first.release()
    assert second.take("k", nothing)
    second.release()


def test_a_daemon_that_leaves_gives_its_place_up(here, tmp_path):
    records = Records(tmp_path, here)
    records.hold()
    records.release()
    again = Records(tmp_path, here)
    again.hold()
    lock = tmp_path / "places" / f"{here.key}.lock"
    with lock.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    again.release()


@pytest.mark.parametrize("kernel_id", ["", ".", "..", "a/b", "../x", "a b", "x" * 129, "-x"])
def test_an_id_that_is_no_file_name_is_refused(kernel_id):
    with pytest.raises(ConfigurationError):
        check_kernel_id(kernel_id)
