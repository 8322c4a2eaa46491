"""The hub's settings in the documentation are known to the classes that they name, and are accepted."""

from types import SimpleNamespace

import pytest
import yaml
from jupyterhub.app import JupyterHub
from traitlets.config import Config

from jupyter_gpuckpt.hub import GpuCkptSpawnerMixin, pod_spawner
from tests.documented import block, blocks

HUB = "jupyterhub.md"
#: Spawners that exist only elsewhere.
UNKNOWN = "yarnspawner"
EXAMPLES = [
    code for code in blocks(HUB, "python") if code.count("\nc.") or code.startswith("c.")
]  # of a hub


def executed(code):
    """Return the configuration after an example."""
    config = Config()
    exec(code, {"c": config})
    return config


def test_all_examples_are_tried():
    assert len(EXAMPLES) >= 6
    assert sum(UNKNOWN in code for code in EXAMPLES) == 1


@pytest.mark.parametrize("code", [code for code in EXAMPLES if UNKNOWN not in code])
def test_the_examples_for_a_hub_are_accepted(code, caplog, monkeypatch):
    config = executed(code)
    # Traits that do not exist are logged as a warning only.
    hub = JupyterHub(config=config)
    spawner = hub.spawner_class(config=config, user=SimpleNamespace(name="ada", id=7))
    if isinstance(spawner, GpuCkptSpawnerMixin):
        spawner.check_all()
    assert not caplog.records, caplog.text
    classes = {
        kind.__name__: kind for kind in (JupyterHub, *type(spawner).mro(), GpuCkptSpawnerMixin)
    }
    for section, settings in config.items():
        known = classes[section].class_traits(config=True)
        assert set(settings) <= set(known), section


def test_any_spawner_can_be_named():
    code = block(HUB, "python", UNKNOWN).replace(
        "yarnspawner.YarnSpawner", "jupyterhub.spawner.LocalProcessSpawner"
    )
    assert issubclass(executed(code).JupyterHub.spawner_class, GpuCkptSpawnerMixin)


def test_the_security_context_for_kubernetes_is_part_of_the_printed_one():
    context = yaml.safe_load(block("containers.md", "yaml", "securityContext"))["securityContext"]
    printed = pod_spawner.container_security("user-namespace")
    assert context.items() <= printed.items()
    assert printed.keys() - context.keys() == {"allowPrivilegeEscalation", "capabilities"}
