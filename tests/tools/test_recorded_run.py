"""The recorded run in the documentation is what the tools do now."""

import pytest

from tests.tools.recorded_run import PAGE, page


@pytest.mark.slow  # a server, three branches and four restores
@pytest.mark.timeout(300)
def test_the_page_is_what_a_run_gives_now(criu):
    assert page() == PAGE.read_text()
