"""A page makes a template of a snapshot: the cells that had run are its recipe."""

import pytest

from tests.conftest import wait_for


@pytest.fixture
def server(clean_server):
    return clean_server


def templates(server):
    return {one["name"]: one for one in server.get("api/gpuckpt/templates")["templates"]}


def notebook_of(*cells):
    return {
        "type": "notebook",
        "format": "json",
        "content": {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {},
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{number}",
                    "metadata": {},
                    "outputs": [],
                    "execution_count": count,
                    "source": source,
                }
                for number, (count, source) in enumerate(cells)
            ],
        },
    }


def saved(server, *cells):
    """Return the snapshot of a kernel in whose notebook these cells ran."""
    server.request("PUT", "api/contents/made.ipynb", json=notebook_of(*cells))
    page = server.open("made.ipynb")
    page.run("pass")
    return server.do("save", page.kernel_id)["result"]["snapshot_id"]


def ended(server, name):
    return wait_for(
        lambda: (one := templates(server).get(name)) and not one["is_being_built"] and one
    )


def test_the_cells_that_ran_are_the_recipe(server):
    cells = [(2, "b = a + 1"), (1, "a = 1"), (None, "1 / 0")]
    body = {"name": "of-a-page", "snapshot_id": saved(server, *cells), "title": "Of a page"}
    response = server.request("POST", "api/gpuckpt/templates", json=body)
    assert response.status_code == 202
    assert templates(server)["of-a-page"]["is_being_built"]
    made = ended(server, "of-a-page")
    assert (made["title"], made["why"], made["error"]) == ("Of a page", "", None)
    status, error = server.refused("POST", "templates", json=body)
    assert (status, error["code"]) == (400, "configuration")
    page = server.open("new.ipynb", kernel="of-a-page")
    assert page.run("print(a, b, In[1:])") == "1 2 ['print(a, b, In[1:])']\n"
    assert "is no copy" not in server.log()


@pytest.mark.slow
def test_a_recipe_that_fails_is_told(server):
    body = {"name": "failing", "snapshot_id": saved(server, (1, "1 / 0"))}
    server.request("POST", "api/gpuckpt/templates", json=body)
    failed = ended(server, "failing")
    assert "Cell 1 of the recipe failed: ZeroDivisionError" in failed["error"]["message"]
    assert "failing" not in server.get("api/kernelspecs")["kernelspecs"]


@pytest.mark.slow
def test_a_snapshot_without_cells_and_a_bad_name_are_refused(server):
    snapshot_id = saved(server, (None, "a = 1"))
    body = {"name": "Bad Name", "snapshot_id": snapshot_id}
    assert server.refused("POST", "templates", json=body)[0] == 400
    body["name"] = "empty"
    server.request("POST", "api/gpuckpt/templates", json=body)
    assert "no notebook with cells that ran" in ended(server, "empty")["error"]["message"]
