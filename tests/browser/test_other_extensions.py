"""What the pages of other extensions show for a suspended kernel."""

import pytest

pytestmark = pytest.mark.browser


def test_the_panel_of_resource_usage_gives_the_reason(open_notebook, expect):
    notebook = open_notebook("usage.ipynb", "x = 41; print(x)").require_engine()
    notebook.run_cell(0, "41")
    page = notebook.page
    page.locator(".jp-SideBar [data-id='kernelusage-panel-id']").click()
    panel = page.locator("#kernelusage-panel-id")
    expect(panel).to_contain_text("Memory:")
    notebook.press("suspend")
    expect(panel).to_contain_text("The kernel is suspended", timeout=60000)
    notebook.press("resume")
    expect(panel).to_contain_text("Memory:", timeout=60000)
