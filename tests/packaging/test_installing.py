"""How pip's configuration reaches uv, which installs what the project needs (tools/install-packages); and which CRIU is built."""

import importlib.machinery
import importlib.util
import os
import re
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
SCRIPT = TOOLS / "install-packages"


@pytest.fixture
def script():
    loader = importlib.machinery.SourceFileLoader("install_packages", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_what_pip_is_told_is_told_to_uv(script, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    config = tmp_path / "pip.conf"
    config.write_text("""
[global]
extra-index-url = https://me:secret@one.example/simple
    https://two.example/simple
cert = /etc/ssl/ours.pem
pre = yes
[install]
constraint = caps.txt
[wheel]
no-deps = yes
""")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_CONSTRAINT", "older.txt")
    monkeypatch.setenv("PIP_PRE", "0")
    configured = script.configuration()
    assert (configured["constraint"], configured["pre"]) == ("older.txt", "0")
    options, variables = script.translated(configured)
    assert options == ["--index-strategy=unsafe-best-match"]
    assert variables == {
        "SSL_CERT_FILE": "/etc/ssl/ours.pem",
        "UV_CONSTRAINT": "older.txt",
        "UV_INDEX": "https://me:secret@one.example/simple https://two.example/simple",
    }
    assert script.translated({"pre": "1"}) == (
        ["--index-strategy=unsafe-best-match", "--prerelease=allow"],
        {},
    )


def test_the_wheel_of_criu_is_built_from_what_the_set_up_builds():
    known = {
        name: dict(re.findall(r'^(ARCHIVE|SHA256|VERSION) ?= ?f?"?([^"\n]+)', text, re.MULTILINE))
        for name in ("install-criu", "wheels.py")
        for text in [(TOOLS / name).read_text()]
    }
    of_wheel = known["wheels.py"]
    of_wheel["ARCHIVE"] = of_wheel["ARCHIVE"].format(VERSION=of_wheel.pop("VERSION"))
    assert known["install-criu"] == of_wheel
