"""What can be typed, and what happens when it is wrong. No daemon is needed for that."""

import json
import subprocess
import sys

import pytest

from jupyter_gpuckpt.cli import actions, app, arguments, prune

COMMANDS = [
    "doctor",
    "ps",
    "save",
    "suspend",
    "park",
    "resume",
    "branch",
    "end",
    "move",
    "list",
    "show",
    "diff",
    "rm",
    "undelete",
    "note",
    "pin",
    "unpin",
    "verify",
    "export",
    "import",
    "stats",
    "execute",
    "hub-report",
    "install-kernel",
    "mcp",
    "notice",
    "prune",
    "remote",
    "slurm-script",
    "template",
]


def test_every_command_has_an_action_and_help(capsys):
    assert list(actions.ACTIONS) == COMMANDS
    for command in COMMANDS:
        assert app.main([command, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_help_lists_the_commands_and_the_exit_statuses(capsys):
    assert app.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert {line.split()[0] for line in out.splitlines() if line.startswith("    ")} >= {*COMMANDS}
    assert "Exit status" in out


def test_the_version_is_told(capsys):
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("jupyter-gpuckpt ")


def test_without_a_command_the_help_goes_to_stderr(capsys):
    assert app.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: jupyter gpuckpt" in err


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["save"],
        ["rm"],
        ["ps", "extra"],
        ["ps", "--js"],
        ["suspend", "--all", "--within", "soon"],
        ["suspend", "--all", "--within", "-5"],
        ["save", "train", "--title", "x" * 301],
        ["note", "latest", "--title", "x" * 301],
    ],
)
def test_wrong_usage_is_status_2_with_a_hint(words, capsys):
    assert app.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Hint: See `jupyter gpuckpt" in err


def test_wrong_usage_is_a_document_for_programs(capsys):
    assert app.main(["save", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "configuration"


def test_several_snapshots_can_be_removed_at_once():
    given = arguments.parser().parse_args(["rm", "-y", "a", "b"])
    assert (given.snapshot, given.yes) == (["a", "b"], True)


@pytest.mark.parametrize(
    "words",
    [
        ["suspend"],
        ["suspend", "abc", "--all"],
        ["suspend", "abc", "--within", "5"],
        ["suspend", "--all", "--title", "x"],
    ],
)
def test_one_kernel_or_all_are_suspended_and_only_all_within_a_time(words, capsys):
    assert app.main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "configuration"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("25s", 25), ("2m", 120), ("90", 90), ("1.5", 1.5), ("0s", 0), ("1h", 3600), (None, None)],
)
def test_times_are_understood(text, seconds):
    within = ["--within", text] if text else []
    given = arguments.parser().parse_args(["suspend", "--all", *within])
    assert (given.all, given.within) == (True, seconds)


@pytest.mark.parametrize(
    ("text", "found"),
    [("90s", 90), ("5m", 300), ("12h", 43200), ("7d", 604800), ("1w2d", 777600), ("0.5h", 1800)],
)
def test_spans_of_time_are_understood(text, found):
    assert prune.seconds(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("500", 500), ("20G", 20e9), ("1.5t", 1.5e12), ("3MB", 3e6), ("2KiB", 2048), ("10B", 10)],
)
def test_sizes_are_understood(text, found):
    assert prune.size_bytes(text) == found


@pytest.mark.parametrize(
    "words",
    [
        ["--keep-last", "-1"],
        ["--keep-last", "many"],
        ["--keep-within", "7"],
        ["--keep-within", "7d3"],
        ["--keep-within", "soon"],
        ["--max-size", "20 X"],
        ["--max-size", "20i"],
    ],
)
def test_rules_that_make_no_sense_are_refused(words, capsys):
    assert app.main(["prune", *words]) == 2
    assert "Hint:" in capsys.readouterr().err


def test_help_needs_none_of_the_libraries_that_take_long_to_import():
    slow = ("httpx", "numpy", "nbclient", "tornado", "cryptography")
    code = f"import sys, jupyter_gpuckpt.cli.app; print([m for m in {slow} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
