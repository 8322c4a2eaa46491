"""Builds of templates: what they make, what they refuse, and what is left when they are killed."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.client import templates as stored
from jupyter_gpuckpt.errors import KernelBusy
from jupyter_gpuckpt.headless import template_builds
from jupyter_gpuckpt.wire import calls, daemon_settings
from tests.blocking_clients import printed
from tests.conftest import wait_for

from .conftest import Templates, is_copy, snapshots, started


def kernels():
    with Client.connect() as client:
        return client.send(calls.kernels())


def nothing_is_left(templates: Templates) -> bool:
    folders = [path.name for path in (templates.data / "templates").iterdir() if path.is_dir()]
    return (folders, templates.names(), snapshots(), kernels()) == ([], [], [], [])


def test_a_template_is_made_listed_rebuilt_and_removed(templates):
    templates.create("made", "value = 1", "--title", "Python with a value", "--env", "EXTRA")
    [snapshot] = snapshots()
    assert snapshot.pinned
    assert "made" in templates.run("list").stdout
    shown = json.loads(templates.run("show", "made", "--json").stdout)
    assert shown["state"] == "ready"
    assert shown["variables"] == ["EXTRA"]
    spec = json.loads((templates.kernelspecs / "made" / "kernel.json").read_text())
    assert spec["display_name"] == "Python with a value"
    icon = (templates.kernelspecs / "made" / "logo-svg.svg").read_text()
    assert "<image" in icon
    assert templates.run("rebuild", "made", "--if-needed").returncode == 0
    assert [one.snapshot_id for one in snapshots()] == [snapshot.snapshot_id]
    assert templates.run("rebuild", "made").returncode == 0
    [newer] = snapshots()
    assert newer.snapshot_id != snapshot.snapshot_id
    again = templates.run("create", "made", "--from", str(templates.recipe("made", "value = 2")))
    assert again.returncode == 2
    assert "There is a template made already" in again.stderr
    assert templates.run("rm", "made").returncode == 0
    assert nothing_is_left(templates)


@pytest.mark.slow
def test_a_notebook_is_a_recipe(templates):
    cells = [
        ("code", "a = 1", []),
        ("code", "b = 1 / 0", ["skip-execution"]),
        ("markdown", "c", []),
    ]
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {},
        "cells": [
            {"cell_type": kind, "source": [text], "metadata": {"tags": tags}}
            for kind, text, tags in cells
        ],
    }
    path = templates.folder / "recipe.ipynb"
    path.write_text(json.dumps(notebook))
    done = templates.run("create", "notebook", "--from", str(path))
    assert done.returncode == 0, done.stderr
    with started("notebook") as (manager, client):
        assert is_copy(manager)
        assert printed(client, "print(a, 'b' in globals())") == "1 False\n"
    assert templates.run("rm", "notebook").returncode == 0


LEFT = {
    "a child": ("import subprocess; p = subprocess.Popen(['sleep', '1000'])", "the process sleep"),
    "a server": (
        "import socket; s = socket.create_server(('127.0.0.1', 0))",
        "a socket at port",
    ),
    "a file": ("file = open('written', 'w')", "which is open for writing"),
    "a folder": (
        "import tempfile; folder = tempfile.TemporaryDirectory()",
        "the temporary directory",
    ),
    "an error": ("1 / 0", "Cell 1 of the recipe failed: ZeroDivisionError"),
    "an end": ("import os; os._exit(0)", "The kernel ended in cell 1"),
}


@pytest.mark.parametrize("what", LEFT)
@pytest.mark.slow
def test_a_recipe_that_leaves_what_copies_cannot_share_is_refused(what, templates):
    code, told = LEFT[what]
    done = templates.run("create", "refused", "--from", str(templates.recipe("refused", code)))
    assert done.returncode != 0
    assert told in done.stderr
    assert nothing_is_left(templates)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["create", "Upper", "--from", "{recipe}"], "Not a name"),
        (["create", "python3", "--from", "{recipe}"], "There is a kernel python3 already"),
        (["create", "other", "--from", "{recipe}", "--kernel", "none"], "There is no kernel none"),
        (["create", "other", "--from", "nothing.py"], "cannot be read"),
        (["rm", "other"], "There is no template other"),
        (["rebuild", "other"], "There is no template other"),
        (["show", "../other"], "Not a name"),
    ],
)
def test_what_cannot_be_is_refused_at_once(words, told, templates):
    recipe = templates.recipe("recipe", "1")
    done = templates.run(*[one.format(recipe=recipe) for one in words])
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert templates.names() == []


@pytest.mark.slow
def test_a_failed_rebuild_keeps_the_template(templates):
    recipe = templates.create("kept", "value = 1")
    [snapshot] = snapshots()
    recipe.write_text("1 / 0")
    done = templates.run("rebuild", "kept")
    assert "ZeroDivisionError" in done.stderr
    assert [one.snapshot_id for one in snapshots()] == [snapshot.snapshot_id]
    template = templates.at("kept").get()
    assert template.cache.snapshot_id == snapshot.snapshot_id
    assert not stored.may_build(template)
    assert "could not be built again" in templates.run("list").stdout
    recipe.write_text("value = 2")
    assert templates.run("rebuild", "kept").returncode == 0
    assert templates.at("kept").get().error is None
    assert templates.run("rm", "kept").returncode == 0


@pytest.mark.slow
def test_a_template_from_which_a_kernel_is_being_started_is_not_removed(templates, monkeypatch):
    templates.create("used", "value = 1")
    monkeypatch.setattr(stored, "_IN_USE_SECONDS", 0.2)
    settings = daemon_settings.from_environment()
    with templates.at("used").in_use(), pytest.raises(KernelBusy):
        template_builds.remove(settings, "used")
    with started("used") as (manager, _):
        assert is_copy(manager)
        monkeypatch.undo()
        # A running copy needs its template no more.
        assert templates.run("rm", "used").returncode == 0
        assert manager.is_alive()
    assert nothing_is_left(templates)


@pytest.mark.slow
def test_a_removal_waits_for_a_kernel_that_is_being_started(templates):
    templates.create("awaited", "value = 1")
    settings = daemon_settings.from_environment()
    removal = threading.Thread(target=template_builds.remove, args=(settings, "awaited"))
    with templates.at("awaited").in_use():
        removal.start()
        wait_for(lambda: templates.at("awaited").is_being_built)  # it has begun
        assert templates.names() == ["awaited"]
        assert templates.at("awaited").find() is not None
    removal.join(60)
    assert nothing_is_left(templates)


def begun(templates, name, code):
    """Begin to make a template of a recipe that says when it runs; return the process."""
    recipe = templates.recipe(name, code)
    words = [sys.executable, "-m", "jupyter_gpuckpt.cli", "template", "create", name]
    return subprocess.Popen(
        [*words, "--from", str(recipe)], env=templates.env, stderr=subprocess.PIPE, text=True
    )


WAITS = "open('running', 'w').close()\nimport time\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)"


@pytest.mark.slow
def test_a_killed_builder_leaves_no_half_template(templates):
    with begun(templates, "half", WAITS) as process:
        wait_for((templates.folder / "running").exists)
        building = json.loads((templates.at("half").path / "building.json").read_text())
        process.kill()
    wait_for(lambda: kernels() == [])
    assert templates.names() == []
    assert "There are no templates" in templates.run("list").stderr
    # The worst moment: its snapshot is complete, and belongs to nothing yet.
    (templates.folder / "go").touch()
    templates.create("other", "value = 1")
    record = templates.at("other").get()
    path = templates.at("half").path / "building.json"
    path.write_text(json.dumps({"kernel_id": record.cache.kernel_id}))
    assert building["kernel_id"] != record.cache.kernel_id
    templates.create("half", "value = 2")
    assert [one.snapshot_id for one in snapshots()] == [
        templates.at("half").get().cache.snapshot_id
    ]
    assert templates.run("rm", "half").returncode == 0
    assert templates.run("rm", "other").returncode == 0
    assert nothing_is_left(templates)


@pytest.fixture
def held_criu(daemon_env, short_dir, monkeypatch):
    """Make CRIU's dumps wait as long as the returned file exists."""
    hold, program = short_dir / "hold", short_dir / "criu"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in dump) while [ -e {hold} ]; do touch {hold}.waits; sleep 0.05; done;; esac\n'
        f'exec {daemon_env["JUPYTER_GPUCKPT_CRIU"]} "$@"\n'
    )
    program.chmod(0o755)
    for name, value in {**daemon_env, "JUPYTER_GPUCKPT_CRIU": str(program)}.items():
        monkeypatch.setenv(name, value)
    return hold


def test_a_killed_daemon_leaves_no_half_template(held_criu, daemon_env, tmp_path):
    env = {**daemon_env, "JUPYTER_GPUCKPT_CRIU": os.environ["JUPYTER_GPUCKPT_CRIU"]}
    templates = Templates(env, tmp_path)
    with Client.connect() as client:  # its first answer comes after a trial of CRIU
        daemon = client.send(calls.handshake()).pid
    held_criu.touch()
    held_criu.with_name("hold.waits").unlink(missing_ok=True)
    with begun(templates, "half", "value = 1") as process:
        wait_for(held_criu.with_name("hold.waits").exists)
        os.kill(daemon, signal.SIGKILL)
        held_criu.unlink()
        assert process.wait(120) != 0
    wait_for(lambda: nothing_is_left(templates))
    templates.create("half", "value = 1")
    with started("half") as (manager, client):
        assert is_copy(manager)
        assert printed(client, "print(value)") == "1\n"
