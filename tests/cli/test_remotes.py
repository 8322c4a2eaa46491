"""`jupyter gpuckpt remote` tries a bucket out before it is remembered, and never repeats a secret."""

from __future__ import annotations

import io
import json
import re
import shutil
import stat

import msgspec
import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.cli.remote import key_command as remote_commands
from jupyter_gpuckpt.cli.remote import remote_command
from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.daemon.remotes.upload_queue import (
    Uploaded,
    read_uploaded,
    record_path,
    write_uploaded,
)
from jupyter_gpuckpt.errors import KeyUnavailable
from jupyter_gpuckpt.linux import file_locks
from jupyter_gpuckpt.remote import store_key, upload_progress
from jupyter_gpuckpt.remote.buckets import open_bucket
from jupyter_gpuckpt.remote.remote_list import Remotes, state_folder
from jupyter_gpuckpt.remote.remote_sessions import Facts
from jupyter_gpuckpt.remote.upload import Uploader
from jupyter_gpuckpt.remote.upload_progress import Journal, path_of
from tests.remote.installations import Reader, save, some_chunks, store_of


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_folder_is_added_tested_listed_and_forgotten(data_dir, tmp_path, capsys):
    url = f"file://{tmp_path}/share"
    assert app.main(["remote", "create", "share", url, "--upload-rate", "20M"]) == 0
    out, err = capsys.readouterr()
    assert re.search("creates objects without overwriting +yes", out)
    assert "only this machine" not in err
    assert f"{url} " in out
    assert app.main(["remote", "list", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["remotes"]
    assert found["remote"]["url"] == url
    assert found["remote"]["upload_rate"] == 20_000_000
    assert found["remote"]["capabilities"]["compare_and_swap"] is True
    assert app.main(["remote", "test", "share"]) == 0
    capsys.readouterr()
    assert app.main(["remote", "list"]) == 0
    assert "usable" in capsys.readouterr().out
    assert app.main(["remote", "rm", "share"]) == 0
    capsys.readouterr()
    assert app.main(["remote", "list"]) == 0
    assert capsys.readouterr().out == "No remotes.\n"


def test_what_cannot_be_tried_is_not_added(data_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert app.main(["remote", "create", "share", f"file://{tmp_path}/file/below"]) != 0
    capsys.readouterr()
    assert app.main(["remote", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"remotes": []}


@pytest.mark.parametrize(
    "words",
    [
        ["s3://KEY:hunter2@bucket/prefix"],
        ["s3://bucket", "--set", "hunter2"],
        ["s3://bucket", "--set", "secret_access_key=hunter2"],
    ],
)
def test_a_secret_that_was_typed_is_refused_and_not_repeated(data_dir, words, capsys):
    assert app.main(["remote", "add", "one", *words]) == 2
    out, err = capsys.readouterr()
    assert "hunter2" not in out + err
    assert not (data_dir / "remotes.json").exists()


def test_a_remote_that_is_not_there_is_named(data_dir, capsys):
    assert app.main(["remote", "test", "none", "--json"]) == 2
    assert "There is no remote 'none'" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.fixture
def on(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command about remotes on a machine; its status, output and errors."""

    def run(machine, *words, typed=""):
        monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(tmp_path / machine))
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        capsys.readouterr()
        return app.main(["remote", *words]), *capsys.readouterr()

    return run


@pytest.fixture
def share(on, tmp_path):
    """Create a remote on the machine `data`; return its URL and the line by which others join."""
    url = f"file://{tmp_path}/share"
    status, out, _ = on("data", "create", "share", url, "--json")
    assert status == 0
    return url, json.loads(out)["line"]


def test_a_second_machine_joins_by_the_line(on, share, tmp_path):
    url, line = share
    key = tmp_path / "data/keys/share.key"
    kept = tmp_path / "data/remotes/share/seen.key"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (key, kept)] == [0o600, 0o600]
    record = (tmp_path / "data/remotes.json").read_text()
    assert line.split()[-1] not in record
    assert key.read_text().strip() not in record

    status, _, err = on("second", "add", "share", url)
    assert (status, "has no key" in err) == (7, True)
    assert not (tmp_path / "second/keys/share.key").exists()
    status, out, err = on("second", "add", "share", typed=line + "\n")
    assert (status, err) == (0, "")
    assert line.split()[-1] not in out

    typed = "correct horse battery staple\n"
    status, out, err = on("second", "key", "password", "share", "--json", typed=typed)
    assert status == 0
    assert "horse" not in out + err
    answer = json.loads(out)
    assert [one["kind"] for one in answer["entries"]] == [
        "key file",
        "code",
        "key file",
        "password",
    ]
    assert [one["here"] for one in answer["entries"]] == [False, False, True, False]
    # Its line has no code, so the password is asked for.
    assert on("third", "add", "share", typed=f"{answer['line']}\nnot the password\n")[0] == 7
    assert on("third", "add", "share", typed=f"{answer['line']}\n{typed}")[0] == 0
    first = answer["entries"][0]["entry_id"]
    assert on("second", "key", "remove", "share", first)[0] == 0
    status, _, err = on("data", "key", "list", "share")
    assert (status, "removed" in err) == (7, True)


def test_a_mistyped_line_is_refused_and_not_repeated(on, share):
    url, line = share
    code = line.split()[-1]
    swapped = code[1] + code[0] + code[2:] if code[0] != code[1] else "A" + code
    for wrong in (
        line[:-1],
        line.replace(code, swapped),
        "",
        url,
        line.rsplit(" ", 2)[0] + " 2 " + code,
    ):
        status, out, err = on("second", "add", "share", typed=wrong + "\n")
        assert status == 2
        assert "mistyped" in err
        assert code not in out + err


def test_adding_never_makes_a_store_and_tells_what_is_wrong(on, share, tmp_path):
    url, line = share
    status, _, err = on("second", "add", "share", typed=line.replace("/share ", "/shore ") + "\n")
    assert status != 0
    assert "There is no store" in err
    assert "the prefix is wrong" in err
    assert not (tmp_path / "shore/key").exists()
    assert on("other", "create", "other", f"file://{tmp_path}/other")[0] == 0
    status, _, err = on("second", "add", "share", typed=line.replace("/share ", "/other ") + "\n")
    assert status != 0
    assert "another store than the line names" in err
    status, _, err = on("second", "create", "share", url)
    assert (status, "There is a store" in err) == (2, True)
    assert not (tmp_path / "second/remotes.json").exists()


@pytest.mark.slow
def test_a_lost_key_is_put_back_by_a_machine_that_keeps_it(on, share, data_dir, tmp_path):
    url, line = share
    _uploaded(data_dir, "share", s1=some_chunks(1, 1))
    (tmp_path / "share/key").unlink()
    for words in (["key", "list", "share"], ["test", "share"]):
        status, _, err = on("data", *words)
        assert status != 0
        assert "remote key restore share" in err
    for words in (["add", "share"], ["create", "share", url]):
        status, _, err = on("second", *words, typed=line + "\n")
        assert status != 0
        assert "not its key" in err or "There is a store" in err
    assert not (tmp_path / "share/key").exists()
    assert on("data", "key", "restore", "share")[0] == 0
    assert on("second", "add", "share", typed=line + "\n")[0] == 0
    # It takes no other key's place.
    status, _, err = on("data", "key", "restore", "share")
    assert (status, "has a key already" in err) == (2, True)


@pytest.mark.usefixtures("share")
def test_an_older_copy_is_noticed_by_machines_that_know_better(on, tmp_path):
    old = (tmp_path / "share/key").read_bytes()
    _, out, _ = on("data", "key", "code", "share", "--json")
    newer = json.loads(out)["line"]
    (tmp_path / "share/key").write_bytes(old)
    for machine, words, typed in (
        ("data", ["key", "list", "share"], ""),
        ("data", ["test", "share"], ""),
        ("second", ["add", "share"], newer),
    ):
        status, _, err = on(machine, *words, typed=typed + "\n")
        assert status != 0
        assert "older copy" in err
        assert "key restore" in err
    (tmp_path / "share/key").unlink()
    assert on("data", "key", "restore", "share")[0] == 0
    assert on("second", "add", "share", typed=newer + "\n")[0] == 0


def test_after_a_rotation_only_this_machine_and_the_new_line_open(on, share):
    _, line = share
    assert on("second", "add", "share", typed=line + "\n")[0] == 0
    assert on("data", "key", "rotate", "share")[0] == 6
    _, out, _ = on("data", "key", "rotate", "share", "--yes", "--json")
    answer = json.loads(out)
    assert [one["kind"] for one in answer["entries"]] == ["key file", "code"]
    assert on("second", "key", "list", "share")[0] == 7
    assert on("third", "add", "share", typed=line + "\n")[0] == 7
    assert on("third", "add", "share", typed=answer["line"] + "\n")[0] == 0


def test_a_key_file_that_others_can_read_is_refused(data_dir, tmp_path, capsys):
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o644)
    words = ["remote", "create", "share", f"file://{tmp_path}/share", "--key-file", str(key)]
    assert app.main(words) == 2
    assert "chmod 600" in capsys.readouterr().err
    key.chmod(0o600)
    assert app.main(words) == 0


def _uploaded(data_dir, name, **sessions):
    """Upload a snapshot of each session: its id, and what it consists of."""
    opened = remote_keys.opened(data_dir, Remotes(data_dir).get(name))
    with store_of(data_dir) as store:
        uploader = Uploader(
            opened.bucket,
            opened.key,
            opened.seen,
            state=state_folder(data_dir, name),
            machine_id=remote_keys.machine_id(data_dir),
        )
        for snapshot_id, chunks in sessions.items():
            save(store, snapshot_id, *chunks)
            facts = Facts(f"of-{snapshot_id}", path=f"{snapshot_id}.ipynb")
            uploader.upload(store, snapshot_id, facts)


def is_eviction_free(data_dir):
    """Whether the daemon may make the copy in the remote `share` the only one."""
    with file_locks.alone_at_once(file_locks.eviction(data_dir, "share")) as free:
        return free


def test_a_session_is_erased_and_then_everything(data_dir, tmp_path, capsys, monkeypatch):
    assert app.main(["remote", "create", "share", f"file://{tmp_path}/share"]) == 0
    one, both, two = some_chunks(1, 2), some_chunks(2, 2), some_chunks(3, 2)
    _uploaded(data_dir, "share", s1=[*one, *both], s2=[*both, *two])
    erase = ["remote", "erase", "share"]
    capsys.readouterr()
    for named in ("s3", "of-"):
        assert app.main([*erase, named, "--yes"]) in {2, 5}
        assert "remote sessions" in (err := capsys.readouterr().err) or "2 sessions" in err
    assert app.main([*erase, "s1.ipynb"]) == 6
    assert "Nothing was erased" in capsys.readouterr().err
    # On a terminal the remote's name has to be typed.
    typed, free = io.StringIO("yes\n"), []

    def isatty():
        # While the user thinks, and until it is erased, the daemon must not make the remote's copy the only one.
        free.append(is_eviction_free(data_dir))
        return True

    monkeypatch.setattr(typed, "isatty", isatty, raising=False)
    monkeypatch.setattr("sys.stdin", typed)
    assert app.main([*erase, "s1"]) == 6
    assert free == [False]
    assert is_eviction_free(data_dir)
    out, err = capsys.readouterr()
    assert re.search(r"of-s1 +s1.ipynb +\S+ +1 ", err)
    assert len(Reader(data_dir, "share").listed()) == 2
    typed.seek(0)
    typed.write("share\n")
    typed.seek(0)
    assert app.main([*erase, "s1"]) == 0
    out, err = capsys.readouterr()
    assert "Session of-s1 is erased: 1 snapshot, 2." in out
    assert "Rewritten: 1 pack that other sessions share." in out
    assert Reader(data_dir, "share").fetch_all() == {"s2": [*both, *two]}
    assert set(Remotes(data_dir).get("share").erased) == {"of-s1"}
    # Whoever asks for it again can have it.
    _uploaded(data_dir, "share", s4=one)
    assert app.main([*erase, "--json", "--yes"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert [one["session_id"] for one in done["plan"]["sessions"]] == ["of-s2", "of-s4"]
    assert done["erased"]["left"] == 0
    assert [path for path in (tmp_path / "share").rglob("*") if path.is_file()] == []
    assert Remotes(data_dir).all() == []
    assert not state_folder(data_dir, "share").exists()
    # The place is as good as new, for the same name as well.
    assert app.main(["remote", "create", "share", f"file://{tmp_path}/share"]) == 0
    _uploaded(data_dir, "share", s5=two)
    assert Reader(data_dir, "share").fetch_all() == {"s5": two}


def test_everything_is_erased_without_a_key_and_after_a_crash(data_dir, tmp_path, capsys):
    assert app.main(["remote", "create", "share", f"file://{tmp_path}/share"]) == 0
    _uploaded(data_dir, "share", s1=some_chunks(1, 1))
    beside = tmp_path / "share/notes/mine.txt"
    beside.parent.mkdir()
    beside.write_text("not ours")
    # As far as it had come when it was killed: nobody has a key to it any more.
    store_key.destroy(open_bucket(Remotes(data_dir).get("share"), lock_dir=data_dir / "remotes"))
    with pytest.raises(KeyUnavailable):
        Reader(data_dir, "share")
    assert app.main(["remote", "erase", "share", "s1", "--yes"]) == 7
    capsys.readouterr()
    assert app.main(["remote", "erase", "share", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert "cannot be read" in err
    assert "is erased" in out
    assert [path for path in (tmp_path / "share").rglob("*") if path.is_file()] == [beside]
    assert Remotes(data_dir).all() == []


def test_old_versions_and_what_cannot_be_deleted_are_told(data_dir, tmp_path, capsys):
    assert app.main(["remote", "create", "share", f"file://{tmp_path}/share"]) == 0
    _uploaded(data_dir, "share", s1=some_chunks(1, 1))

    def versioned(remote):
        able = msgspec.structs.replace(remote.capabilities, versioned=True)
        return msgspec.structs.replace(remote, capabilities=able)

    Remotes(data_dir).change("share", versioned)
    capsys.readouterr()
    assert app.main(["remote", "erase", "share", "--yes"]) == 0
    assert "life-cycle rule" in capsys.readouterr().err


def test_while_a_remote_is_removed_its_copies_do_not_become_the_only_ones(
    data_dir, tmp_path, monkeypatch
):
    assert app.main(["remote", "create", "share", f"file://{tmp_path}/share"]) == 0
    free = []

    def asked(*words, **more):
        free.append(is_eviction_free(data_dir))
        return remote_commands.ask(*words, **more)

    monkeypatch.setattr(remote_command, "ask", asked)
    assert app.main(["remote", "rm", "share"]) == 0
    assert free == [False]
    assert is_eviction_free(data_dir)
    assert app.main(["remote", "rm", "../share"]) != 0
    assert [path.name for path in data_dir.glob("**/*evicting")] == ["share.evicting"]


def test_nothing_of_a_removed_remote_counts_for_another_of_its_name(data_dir, tmp_path):
    urls = [f"file://{tmp_path}/{name}" for name in ("one", "other")]
    content = some_chunks(1, 2)
    assert app.main(["remote", "create", "share", urls[0]]) == 0
    _uploaded(data_dir, "share", s1=content)
    state = state_folder(data_dir, "share")
    opened = remote_keys.opened(data_dir, Remotes(data_dir).get("share"))
    unfinished = Journal(path_of(state, "s2"), opened.key.public.store_id)
    write_uploaded(record_path(data_dir, "share"), Uploaded({"s1": 1.0}, 1.0))
    assert unfinished.epoch is None
    shutil.copytree(state, tmp_path / "kept")
    assert app.main(["remote", "rm", "share"]) == 0
    left = [path for path in (data_dir / "remotes").rglob("*") if path.is_file()]
    assert [path for path in left if path.stat().st_size] == []
    # A daemon that was reading it at that moment writes down afterwards what it has seen.
    shutil.copytree(tmp_path / "kept", state)
    assert app.main(["remote", "create", "share", urls[1]]) == 0
    assert upload_progress.unfinished(state) == []
    assert read_uploaded(record_path(data_dir, "share")) == Uploaded()
    shutil.rmtree(data_dir / "store")
    _uploaded(data_dir, "share", s1=content)
    assert Reader(data_dir, "share").fetch_all() == {"s1": content}
