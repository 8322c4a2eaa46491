"""A template is never a reason for a kernel not to start: where no copy can be made, its recipe runs in an ordinary kernel."""

import json
import logging
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import Manifest
from tests.blocking_clients import printed
from tests.conftest import wait_for

from .conftest import is_copy, snapshots, started

RECIPE = "import {module}\nvalue = {module}.value\nprint('the recipe prints')\n"


@pytest.fixture
def logged(caplog):
    """Return the lines about kernels that are no copies."""
    caplog.set_level(logging.WARNING)
    return lambda: [r.getMessage() for r in caplog.records if "is no copy" in r.getMessage()]


def made(templates, name):
    """Make a template whose recipe imports a module; return the module's file."""
    module = templates.folder / f"module_of_{name}.py"
    module.write_text("value = 1")
    code = RECIPE.format(module=module.stem)
    templates.create(name, f"import sys; sys.path.insert(0, {str(templates.folder)!r})\n{code}")
    return module


def is_ready(templates, name):
    return json.loads(templates.run("show", name, "--json").stdout)["state"] == "ready"


@pytest.mark.slow
def test_a_changed_package_is_noticed_and_the_template_built_again(templates, logged):
    module = made(templates, "package")
    module.write_text("value = 22")
    with started("package") as (manager, client):
        assert not is_copy(manager)
        assert printed(client, "print(value, In[1:], get_ipython().execution_count > 2)") == (
            "22 ['print(value, In[1:], get_ipython().execution_count > 2)'] False\n"
        )
    [line] = logged()
    assert f"the file {module} was changed" in line
    wait_for(lambda: is_ready(templates, "package"))
    with started("package") as (manager, client):
        assert is_copy(manager)
        assert printed(client, "print(value)") == "22\n"
    assert templates.run("rm", "package").returncode == 0


@pytest.mark.slow
def test_a_removed_package_is_noticed(templates, logged):
    folder = templates.folder / "site"
    (folder / "removed-1.0.dist-info").mkdir(parents=True)
    (folder / "removed.py").write_text("value = 1")
    path = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    templates.create("package-of", f"{path}import removed\n")
    with started("package-of") as (manager, client):
        assert is_copy(manager)
        assert printed(client, "print(removed.value)") == "1\n"
    (folder / "removed.py").unlink()
    (folder / "removed-1.0.dist-info").rmdir()
    with started("package-of") as (manager, client):
        assert not is_copy(manager)
        told = printed(client, "print('removed' in sys.modules)")
        assert told.startswith("False\n")
        assert "No module named 'removed'" in told
    assert "the package removed was changed" in logged()[0]
    wait_for(lambda: templates.at("package-of").get().error is not None)
    assert "No module named 'removed'" in templates.at("package-of").get().error.message
    assert templates.run("rm", "package-of").returncode == 0


@pytest.mark.slow
def test_a_changed_recipe_runs_at_once_and_the_template_is_built_again(templates, logged):
    recipe = templates.create("recipe", "value = 1")
    recipe.write_text("value = 2")
    with started("recipe") as (manager, client):
        assert not is_copy(manager)
        assert printed(client, "print(value)") == "2\n"
    assert "its recipe was changed" in logged()[0]
    wait_for(lambda: is_ready(templates, "recipe"))
    # The file may go: the template has a copy of it.
    recipe.unlink()
    with started("recipe") as (manager, client):
        assert is_copy(manager)
        assert printed(client, "print(value)") == "2\n"
    assert templates.run("rm", "recipe").returncode == 0


@pytest.mark.slow
def test_a_snapshot_that_is_gone_is_made_again(templates, logged):
    templates.create("gone", "value = 1")
    with Client.connect() as client:
        client.send(calls.delete_snapshot(templates.at("gone").get().cache.snapshot_id))
    with started("gone") as (manager, client):
        assert not is_copy(manager)
        assert printed(client, "print(value)") == "1\n"
    assert len(logged()) == 1
    wait_for(lambda: snapshots() and not templates.at("gone").is_being_built)
    with started("gone") as (manager, _):
        assert is_copy(manager)
    assert templates.run("rm", "gone").returncode == 0


@pytest.mark.slow
def test_another_processor_runs_the_recipe_and_builds_nothing(templates, logged):
    templates.create("elsewhere", "value = 1")
    folder = templates.at("elsewhere")
    template = folder.get()
    # As if the snapshot came from another machine.
    [path] = templates.data.glob(f"**/manifests/{template.cache.snapshot_id}*")
    manifest = manifests.read(path, Manifest)
    host = msgspec.structs.replace(manifest.host, cpu_flags=[*manifest.host.cpu_flags, "avx9999"])
    edited = msgspec.structs.replace(manifest, host=host)
    manifests.replace_file(path, manifests.encoded(edited))
    cache = msgspec.structs.replace(template.cache, host_name="another")
    folder.write(msgspec.structs.replace(template, cache=cache), {})
    with started("elsewhere") as (manager, client):
        assert not is_copy(manager)
        assert printed(client, "print(value)") == "1\n"
    assert "avx9999" in logged()[0]
    assert not folder.is_being_built
    assert folder.get().cache.snapshot_id == template.cache.snapshot_id
    assert templates.run("rm", "elsewhere").returncode == 0


@pytest.mark.slow
def test_a_damaged_template_runs_the_recipe(templates, logged):
    templates.create("damaged", "value = 1")
    (templates.at("damaged").path / "template.json").write_text("{")
    with started("damaged") as (manager, client):
        assert not is_copy(manager)
        assert printed(client, "print(value)") == "1\n"
    assert "cannot be read" in logged()[0]
    listed = templates.run("list")
    assert (listed.returncode, "cannot be read" in listed.stderr) == (0, True)
    assert templates.run("rm", "damaged").returncode == 0
    assert templates.names() == []


@pytest.mark.slow
def test_a_recipe_that_fails_costs_no_kernel_and_no_cell(templates, logged):
    recipe = templates.create("failing", "value = 1")
    recipe.write_text("value = 2\n1 / 0")
    with started("failing") as (_, client):
        reply = client.execute_interactive("value", timeout=60)
        assert reply["content"]["status"] == "ok"
    assert len(logged()) == 1
    wait_for(lambda: templates.at("failing").get().error is not None)
    assert templates.run("rm", "failing").returncode == 0


def test_without_the_engine_the_recipe_runs(templates, daemon_env, monkeypatch, tmp_path):
    templates.create("plain", "value = 1")
    # The same files, in an environment whose daemon finds no CRIU.
    env = {**daemon_env, "JUPYTER_GPUCKPT_CRIU": str(tmp_path / "none")}
    shutil.copytree(
        templates.data / "templates", Path(env["JUPYTER_GPUCKPT_DATA_DIR"]) / "templates"
    )
    shutil.copytree(templates.kernelspecs, Path(env["JUPYTER_DATA_DIR"]) / "kernels")
    assert templates.run("rm", "plain").returncode == 0
    (templates.at("plain").path).mkdir(parents=True)
    for name in ("start.py", "recipe.ipynb"):
        source = Path(env["JUPYTER_GPUCKPT_DATA_DIR"]) / "templates" / "plain" / name
        shutil.copy(source, templates.at("plain").path / name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    KernelProvisionerFactory.clear_instance()
    with started("plain") as (manager, client):
        assert manager.provisioner.plain_reason
        assert printed(client, "print(value)") == "1\n"
    shutil.rmtree(templates.at("plain").path)


@pytest.mark.slow
def test_a_client_that_knows_no_provisioners_runs_the_recipe(templates, tmp_path):
    templates.create("by-hand", "value = 1\nprint('the recipe prints')")
    spec = json.loads((templates.kernelspecs / "by-hand" / "kernel.json").read_text())
    file, _ = write_connection_file(str(tmp_path / "connection.json"))
    words = [word.replace("{connection_file}", file) for word in spec["argv"]]
    with subprocess.Popen(words, env=templates.env) as process:
        client = BlockingKernelClient(connection_file=file)
        client.load_connection_file()
        client.start_channels()
        assert printed(client, "print(value)") == "1\n"
        client.shutdown()
        client.stop_channels()
        process.wait(60)
    assert templates.run("rm", "by-hand").returncode == 0
