"""Thirty users of a hub start a kernel of the administrator's template at the same time."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from jupyter_gpuckpt.host import processes
from tests.conftest import end_everything_below, missing
from tests.engines.test_many_users import LocalHub
from tests.engines.user_accounts import UserAccounts
from tests.templates.conftest import PLANTED, Templates
from tests.templates.memory import found_in_memory
from tests.templates.test_shared import RECIPE, state_of

#: The loaded machines of CI take several times as long as an idle one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

USERS = 30
#: Servers, daemons and kernels of all users.
MEMORY_BYTES = 12 << 30

CONFIG = """
c.JupyterHub.spawner_class = "gpuckpt-localprocess"
c.Spawner.environment = {{
    **{{
        name: text
        for name, text in given["environment"].items()
        if name != "JUPYTER_GPUCKPT_RUNTIME_DIR"
    }},
    "JUPYTER_PATH": "{share}",
    "JUPYTER_CONFIG_PATH": "{config}",
}}
"""
SERVER_CONFIG = """
c.GpuCkptProvisioner.shared_templates = ["ready"]
c.GpuCkptProvisioner.shared_data_dir = {data!r}
"""

FACTS = """
import os, pathlib, ssl
print(total(), os.getuid(), pathlib.Path.home(), os.environ["JUPYTERHUB_API_TOKEN"], ssl.RAND_bytes(8).hex())
"""


@pytest.fixture
def administrator(daemon_env, short_dir):
    """Return the folder of an administrator who has made the template `ready`."""
    if os.geteuid():
        pytest.skip("being other users needs root")
    if psutil.virtual_memory().available < MEMORY_BYTES:
        missing("memory", f"thirty users need {MEMORY_BYTES >> 30} GB of free memory")
    templates = Templates(daemon_env, short_dir)
    templates.create("ready", RECIPE)
    end_everything_below(short_dir)
    config = short_dir / "server-config"
    config.mkdir()
    (config / "jupyter_server_config.py").write_text(SERVER_CONFIG.format(data=str(templates.data)))
    for folder in (templates.data, templates.kernelspecs.parent, config):
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    return templates


@pytest.fixture
def hub_and_names(administrator, daemon_env, short_dir):
    """Return a started hub, and the names of its users."""
    with UserAccounts(short_dir, USERS) as accounts:
        hub = LocalHub(short_dir, daemon_env, accounts)
        share, config = administrator.kernelspecs.parent, short_dir / "server-config"
        hub.write_config(CONFIG.format(share=share, config=config))
        try:
            yield hub.start(), accounts.names
        finally:
            hub.end()
            end_everything_below(short_dir)  # before its users are no more


def process_of(page):
    """Return the pid of a kernel: its init has the path of its exit file as an argument, and begins with the kernel's id."""
    [init] = [
        pid
        for pid in processes.every()
        if any(f"/exits/{page.kernel_id}-" in one for one in processes.arguments(pid))
        and processes.nspid(pid) == 1
    ]
    return processes.descendants(init)[-1]


def test_thirty_users_start_a_template_at_once(administrator, hub_and_names):
    hub, names = hub_and_names
    before = state_of(administrator.data)
    users = [hub.user(name) for name in names]
    with ThreadPoolExecutor(USERS) as pool:
        list(pool.map(lambda user: user.start(), users))
        pages = list(pool.map(lambda user: user.open("notebook.ipynb", kernel="ready"), users))
        printed = list(pool.map(lambda page: page.run(FACTS).split(), pages))
    assert "is no copy" not in hub.log_path.read_text(errors="replace")
    totals, uids, homes, tokens, drawn = zip(*printed, strict=True)
    assert set(totals) == {"45"}
    assert homes == tuple(str(user.home) for user in users)
    for values in (uids, tokens, drawn):
        assert len(set(values)) == USERS
    secrets = {PLANTED.encode(), *(token.encode() for token in tokens)}
    for page, uid, token in zip(pages, uids, tokens, strict=True):
        pid = process_of(page)
        assert processes.uid(pid) == int(uid)
        assert found_in_memory(pid, secrets) == {token.encode()}
    assert state_of(administrator.data) == before
