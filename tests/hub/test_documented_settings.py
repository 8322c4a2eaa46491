"""The hub's settings in the documentation are known to the classes that they name, and are accepted."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from jupyterhub.app import JupyterHub
from systemdspawner import SystemdSpawner
from traitlets.config import Config

from jupyter_gpuckpt.hub import GpuCkptSpawnerMixin, pod_spawner
from jupyter_gpuckpt.server.extension import GpuCkptServer
from tests.documented import block, blocks

HUB = "jupyterhub.md"
LITTLEST = "littlest-jupyterhub.md"
#: Spawners that exist only elsewhere.
UNKNOWN = "yarnspawner"
#: Settings of a user's server.
OF_SERVERS = "c.MappingKernelManager"
EXAMPLES = [
    code
    for page in (HUB, LITTLEST)
    for code in blocks(page, "python")
    if (code.count("\nc.") or code.startswith("c.")) and OF_SERVERS not in code
]  # of a hub


def executed(code):
    """Return the configuration after an example."""
    config = Config()
    exec(code, {"c": config})
    return config


def test_all_examples_are_tried():
    assert len(EXAMPLES) >= 10
    assert sum(UNKNOWN in code for code in EXAMPLES) == 1


@pytest.fixture
def littlest(monkeypatch):
    """Let examples import the spawner of The Littlest JupyterHub, which is not on PyPI; return a class that makes users as it does."""

    class UserCreatingSpawner(SystemdSpawner):
        made = ()

        def start(self):
            self.made = [self.user.name]
            return super().start()

    module = ModuleType("tljh.user_creating_spawner")
    vars(module)["UserCreatingSpawner"] = UserCreatingSpawner
    monkeypatch.setitem(sys.modules, "tljh", ModuleType("tljh"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return UserCreatingSpawner


@pytest.mark.usefixtures("littlest")
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
        kind.__name__: kind
        for kind in (JupyterHub, *type(spawner).mro(), GpuCkptSpawnerMixin, SystemdSpawner)
    }
    for section, settings in config.items():
        known = classes[section].class_traits(config=True)
        assert set(settings) <= set(known), section


def test_the_littlest_jupyterhub_makes_users_and_gives_their_servers_time(littlest, monkeypatch):
    async def started(self):  # systemd does not run where these tests do
        return self.unit_extra_properties

    monkeypatch.setattr(SystemdSpawner, "start", started)
    config = executed(block(LITTLEST, "python", "UserCreatingSpawner"))
    spawner = config.JupyterHub.spawner_class(user=SimpleNamespace(name="ada", id=7))
    assert isinstance(spawner, littlest)
    told = asyncio.run(spawner.start())
    assert spawner.made == ["ada"]
    # The lines for a hub without this package say the same to systemd.
    plain = executed(block(LITTLEST, "python", "unit_extra_properties")).SystemdSpawner
    assert told == plain.unit_extra_properties


def test_the_settings_of_servers_exist():
    config = executed(block(LITTLEST, "python", OF_SERVERS))
    for kind in (MappingKernelManager, GpuCkptServer):
        settings = config.pop(kind.__name__)
        assert settings
        assert set(settings) <= set(kind.class_traits(config=True))
    assert not config


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
