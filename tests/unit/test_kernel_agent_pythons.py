"""The agent runs in kernels of Python 3.8 and newer, whatever Python the server has."""

import ast
import os
import runpy
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.client import agent_code

#: The oldest Python for which a supported ipykernel (6.29) exists.
OLDEST = (3, 8)
INSTALLER = Path(__file__).parents[2] / "tools/install-packages"
AGENT = resources.files("jupyter_gpuckpt.kernel_agent")
SOURCES = {path.name: path.read_text() for path in Path(str(AGENT)).rglob("*.py")}
#: Classes that can be subscripted when a module runs only in newer versions.
NOT_GENERIC = {"Callable", "Collection", "Iterable", "Iterator", "Mapping", "Sequence"} | {
    kind.__name__ for kind in (dict, frozenset, list, set, tuple, type)
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_agents_code_is_python_of_the_oldest_version(name):
    tree = ast.parse(SOURCES[name], feature_version=OLDEST)
    evaluated = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in _evaluated(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in NOT_GENERIC
    ]
    assert evaluated == []


def _evaluated(node):
    """Yield all nodes but annotations, which are text with `from __future__ import annotations`."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _evaluated(child)


@pytest.mark.slow
def test_the_agent_answers_in_a_kernel_of_the_oldest_version(tmp_path):
    uv = Path(sys.executable).with_name("uv")
    python = tmp_path / "env/bin/python"
    version = ".".join(map(str, OLDEST))
    made = subprocess.run(
        [uv, "venv", "--quiet", "--no-python-downloads", "--python", version, tmp_path / "env"],
        check=False,
    )
    if made.returncode:
        pytest.skip(f"there is no Python {version} here")
    installer = runpy.run_path(str(INSTALLER))
    options, variables = installer["translated"](installer["configuration"]())
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, *options, "ipykernel==6.29.*"],
        env=os.environ | variables,
        check=True,
    )
    manager = KernelManager()
    manager.kernel_spec.argv[0] = str(python)
    manager.start_kernel()
    client: BlockingKernelClient = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        code = f"import sys; assert sys.version_info[:2] == {OLDEST}"
        assert _asked(client, "execute_request", _code(code))["status"] == "ok"
        installed = _asked(client, "execute_request", agent_code.installation_request())
        assert installed["status"] == "ok", installed
        _asked(client, "execute_request", _code("x = 5"))
        counted = _asked(client, agent_code.AGENT_REQUEST, {"op": "count"})
        assert counted["on_save"] == 0
        told = {"op": "variables", "fingerprint_seconds": 1.0}
        [listed] = _asked(client, agent_code.AGENT_REQUEST, told)["variables"]["listed"]
        assert (listed["name"], listed["summary"]) == ("x", "5")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _code(text):
    return agent_code.installation_request() | {"code": text, "silent": False}


def _asked(client, kind, content):
    request = client.session.msg(kind, content)
    client.control_channel.send(request)
    return client._recv_reply(request["header"]["msg_id"], timeout=60, channel="control")["content"]
