"""The names of kernels and snapshots in arguments."""

import pytest

from jupyter_gpuckpt.cli import naming
from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import ConfigurationError
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.snapshot_records import Snapshot

KERNELS = {
    "ab": "work/train.ipynb",
    "ab1": "work/train-branch-1.ipynb",
    "ab2": "Evaluate.ipynb",
    "c1": "python3",
    "d1": "",
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ab1", "ab1"),
        ("ab", "ab"),
        ("d", "d1"),
        ("PYTHON", "c1"),
        ("x", ""),
        ("", ""),
        ("work/train.ipynb", "ab"),
        ("train.ipynb", "ab"),
        ("train", "ab"),
        ("branch", "ab1"),
        ("eval", "ab2"),
    ],
)
def test_an_id_a_notebook_or_a_part_that_is_unique_names_one(text, found):
    assert naming.one_of(text, KERNELS) == found


def test_what_may_mean_several_is_refused_and_lists_them():
    with pytest.raises(ConfigurationError, match="'trai' can mean any of 2") as refused:
        naming.one_of("trai", KERNELS)
    assert refused.value.details.splitlines() == [
        "ab  work/train.ipynb",
        "ab1  work/train-branch-1.ipynb",
    ]
    many = {f"a{number}": "\x1b[2J" for number in range(30)}
    with pytest.raises(ConfigurationError) as refused:
        naming.one_of("a", many)
    *lines, rest = refused.value.details.splitlines()
    assert (len(lines), rest) == (10, "...")
    assert "\x1b" not in refused.value.details


def snapshot(snapshot_id, kernel_id, name, title=""):
    return Snapshot(snapshot_id, kernel_id, 0.0, "save", name, title=title)


#: Newest first; the notebook train had another kernel before.
SNAPSHOTS = [
    snapshot("5", "other", "eval.ipynb", "last"),
    snapshot("4", "new", "train.ipynb"),
    snapshot("3", "new", "train.ipynb", "before the change"),
    snapshot("2", "old", "train.ipynb", "Warm-up"),
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("latest", "5"),
        ("train:latest", "4"),
        ("old:latest", "2"),
        ("before", "3"),
        ("warm-up", "2"),
        ("3", "3"),
    ],
)
def test_snapshots_are_named_by_titles_and_as_the_latest(text, found):
    assert naming.one_snapshot(text, SNAPSHOTS) == found


def test_kernels_here_are_saved_by_notebook_and_a_title_names_the_snapshot(
    kernels, gpuckpt, gpuckpt_json, daemon_env, monkeypatch
):
    first, second = kernels(2)
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    with Client.connect(start=False) as client:
        client.send(calls.set_jupyter(first.id, name="work/train.ipynb"))
        client.send(calls.set_jupyter(second.id, name="work/evaluate.ipynb"))
    operation = gpuckpt_json("save", "train", "--title", "before the change")["operation"]
    assert operation["kernel_id"] == first.id
    (listed,) = gpuckpt_json("list", "--kernel", "train.ipynb")["snapshots"]
    assert (listed["title"], listed["pinned"]) == ("before the change", True)
    done = gpuckpt("save", "work", status=2)
    assert done.stderr.startswith("'work' can mean any of 2:\n")
    for one, name in ((first, "work/train.ipynb"), (second, "work/evaluate.ipynb")):
        assert f"  {one.id}  running     {name}\n" in done.stderr
    assert gpuckpt_json("suspend", "EVAL", "--title", "done")["operation"]["kernel_id"] == second.id
    snapshot_id = operation["result"]["snapshot_id"]
    assert gpuckpt_json("unpin", "before")["snapshot"]["snapshot_id"] == snapshot_id
    # The newest of all is that of the other kernel.
    assert gpuckpt_json("resume", "latest")["operation"]["kernel_id"] == second.id
    assert gpuckpt_json("pin", "train:latest")["snapshot"]["snapshot_id"] == snapshot_id
