"""The conda recipe asks for what the project asks for, and the workflows can be read."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def recipe():
    return yaml.safe_load((ROOT / "conda-recipe" / "meta.yaml").read_text())


def test_the_recipe_has_the_version_of_the_project(recipe):
    version = json.loads((ROOT / "labextension" / "package.json").read_text())["version"]
    assert recipe["package"]["version"] == version


def test_the_recipe_needs_what_the_project_needs(recipe):
    python = "python " + PROJECT["project"]["requires-python"]
    for where, needed in (
        ("run", PROJECT["project"]["dependencies"]),
        ("host", PROJECT["build-system"]["requires"]),
    ):
        wanted = {python, *(re.sub(r"(?=[<>=])", " ", one, count=1) for one in needed)}
        assert set(recipe["requirements"][where]) - {"pip"} == wanted


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_its_actions_and_runs_targets_that_exist(workflow):
    text = workflow.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all("timeout-minutes" in job for job in jobs.values())
    for step in steps:
        if "uses" in step:
            assert re.search(r"@(v\d+|release/v\d+)$", step["uses"]), step
    targets = re.findall(r"^(?:\S+ )*?([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for step in steps:
        assert set(re.findall(r"\bmake ([\w-]+)", step.get("run", ""))) <= set(targets)
