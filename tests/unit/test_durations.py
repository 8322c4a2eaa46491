"""Durations as users write them, and the trait that takes them."""

import pytest
from traitlets import TraitError
from traitlets.config import Config

from jupyter_gpuckpt.server.traits import ServerTraits
from jupyter_gpuckpt.wire import durations

MEANT = {"30s": 30, "10m": 600, " 1.5h ": 5400, "90": 90, "2 m": 120, 7: 7, 0.5: 0.5, 0: 0}
MEANINGLESS = (
    "",
    "m",
    "-5",
    "1d",
    "5 minutes",
    "1h30m",
    -1,
    float("inf"),
    float("nan"),
    None,
    True,
)


@pytest.mark.parametrize(("text", "seconds"), MEANT.items())
def test_a_time_is_read_in_a_setting_and_on_the_command_line(text, seconds):
    assert durations.to_seconds(text) == seconds
    assert ServerTraits(config=Config(ServerTraits={"lose_at_most": text})).lose_at_most == seconds
    assert ServerTraits.lose_at_most.from_string(str(text)) == seconds


@pytest.mark.parametrize("text", MEANINGLESS)
def test_what_is_no_time_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="a time such as 25s"):
        durations.to_seconds(text)
    with pytest.raises(TraitError, match="a text such as"):
        ServerTraits(lose_at_most=text)
