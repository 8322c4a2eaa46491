"""The notebook in a snapshot: its cells and outputs, as pages get them."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

PLOT = "<svg>" + "".join(f"<g id='{number}'/>" for number in range(3000)) + "</svg>"


def cell(name, text="1", **data):
    outputs = [new_output("display_data", data=data)] if data else []
    return new_code_cell(text, id=name, execution_count=1, outputs=outputs)


@pytest.fixture
def page(clean_server, request):
    name = f"{request.node.name}.ipynb"
    page = clean_server
    write(page.root / name, [cell("first", "x = 1")])
    opened = page.open(name)
    opened.file, opened.server = page.root / name, page
    return opened


def write(path, cells):
    nbformat.write(new_notebook(cells=cells), path)


def saved(page, verb="save"):
    return page.server.do(verb, page.kernel_id)["result"]["snapshot_id"]


def stored(page, snapshot_id):
    return page.server.get(f"api/gpuckpt/snapshots/{snapshot_id}/notebook")


def test_each_snapshot_has_the_notebook_as_it_was_then(page):
    plots = [cell(f"plot{number}", **{"image/svg+xml": PLOT}) for number in range(3)]
    write(page.file, [cell("first", "x = 1"), *plots])
    first = saved(page)
    write(page.file, [new_markdown_cell("# Title", id="title"), cell("first", "x = 2"), *plots])
    second = saved(page, "suspend")
    assert page.server.do("resume", page.kernel_id)["state"] == "succeeded"
    page.file.unlink()
    third = saved(page)

    found = stored(page, first)
    assert [one["source"] for one in found["notebook"]["cells"]] == ["x = 1", "1", "1", "1"]
    assert found["notebook"]["cells"][1]["outputs"] == plots[0].outputs
    assert found["notebook"]["cells"][1]["execution_count"] == 1
    assert found["modified"] > 0
    cells = stored(page, second)["notebook"]["cells"]
    assert [one["id"] for one in cells] == ["title", "first", "plot0", "plot1", "plot2"]
    assert stored(page, third) == {"notebook": None, "modified": 0.0}


def test_outputs_are_trusted_only_if_this_user_has_signed_them(page):
    claimed = cell("first", "x = 1", **{"text/html": "<script>1</script>"})
    claimed.metadata["trusted"] = True
    write(page.file, [claimed])
    snapshot_id = saved(page)

    def trusted():
        (found,) = stored(page, snapshot_id)["notebook"]["cells"]
        return found["metadata"]["trusted"]

    assert not trusted()
    name = page.file.name
    content = page.server.get(f"api/contents/{name}")["content"]
    content["cells"][0]["metadata"]["trusted"] = True
    page.server.request(
        "PUT", f"api/contents/{name}", json={"type": "notebook", "content": content}
    )
    snapshot_id = saved(page)
    assert trusted()


def test_a_file_that_is_no_notebook_costs_no_snapshot(page):
    for text in ("{", "[]", '{"nbformat": 3}', '{"nbformat": 4, "cells": 1}', "[" * 100_000):
        page.file.write_text(text)
        operation = page.server.do("save", page.kernel_id)
        assert operation["state"] == "succeeded"
        assert "does not contain the notebook" in " ".join(operation["result"]["warnings"])
        assert stored(page, operation["result"]["snapshot_id"])["notebook"] is None


def test_a_notebook_that_is_not_valid_is_not_handed_out(page):
    for invalid in ({"id": 7}, {"source": [1]}):
        page.file.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": [invalid]}))
        snapshot_id = saved(page)
        status, refusal = page.server.refused("GET", f"snapshots/{snapshot_id}/notebook")
        assert status == 500
        assert refusal["code"] == "manifest_invalid"


def test_a_branch_gets_the_notebook_of_its_snapshot(page):
    write(page.file, [cell("then", "x = 1")])
    snapshot_id = saved(page)
    write(page.file, [cell("now", "x = 2")])
    branch = page.server.request("POST", f"api/gpuckpt/snapshots/{snapshot_id}/branch", json={})
    assert page.server.finish(branch.json())["state"] == "succeeded"
    made = json.loads((page.server.root / branch.json()["path"]).read_text())
    assert [one["id"] for one in made["cells"]] == ["then"]
    assert "trusted" not in made["cells"][0]["metadata"]
