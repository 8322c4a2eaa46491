"""The spawner class by itself: from which spawners it is made, and what it says."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from traitlets.config import Config

from jupyter_gpuckpt.hub import GpuCkptSpawnerMixin, with_suspend
from jupyter_gpuckpt.hub.spawner import start_form, waiting_message
from jupyter_gpuckpt.wire.hub_records import NAMED, WAITING, SpawnerState, Waiting, WaitingKernel


def waiting_for(*names):
    return Waiting.of([WaitingKernel(name) for name in names])


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("simple", SimpleLocalProcessSpawner),
        ("jupyterhub.spawner.LocalProcessSpawner", LocalProcessSpawner),
        (LocalProcessSpawner, LocalProcessSpawner),
    ],
)
def test_it_is_made_from_any_spawner_and_configured_by_its_names(given, used):
    made = with_suspend(given)
    assert issubclass(made, used)
    assert issubclass(made, GpuCkptSpawnerMixin)
    config = Config()
    config[used.__name__].cmd = ["mine"]
    config.GpuCkptSpawnerMixin.suspend_timeout = 7
    spawner = made(config=config)
    assert (spawner.cmd, spawner.suspend_timeout) == (["mine"], 7)


def test_an_unknown_spawner_is_an_import_error():
    with pytest.raises(ImportError):
        with_suspend("nowhere.Spawner")


def test_what_waits_survives_the_hub_until_the_server_has_started():
    class Started(SimpleLocalProcessSpawner):
        async def start(self):
            return "http://127.0.0.1:1"

    spawner = with_suspend(Started)()
    waiting = msgspec.to_builtins(Waiting.of([WaitingKernel("a.ipynb", 10, 5, 1.5)]))
    spawner.load_state({"pid": 0, WAITING: waiting})
    # The hub clears the state of a spawner before it starts it.
    spawner.clear_state()
    assert spawner.get_state()[WAITING] == waiting
    assert asyncio.run(spawner.start()) == "http://127.0.0.1:1"
    assert WAITING not in spawner.get_state()


def test_what_waits_is_said_in_a_sentence():
    one, many = waiting_for("a.ipynb"), waiting_for(*(f"{number}.ipynb" for number in range(7)))
    assert waiting_message(one) == "1 suspended session is waiting: a.ipynb"
    assert waiting_message(many) == (
        "7 suspended sessions are waiting: 0.ipynb, 1.ipynb, 2.ipynb, 3.ipynb, 4.ipynb, ..."
    )


class Cells(HTMLParser):
    """The texts of a table's cells, and the names of all elements."""

    def __init__(self, html):
        super().__init__()
        self.cells, self.elements = [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def test_the_form_shows_what_waits_and_runs_nothing_that_a_name_contains():
    name = "</td><script>alert(1)</script>\"'&amp;"
    kernels = [WaitingKernel(name, 3_200_000_000, 2_000_000_000, 1000.0), WaitingKernel("b.ipynb")]
    shown = Cells(start_form(Waiting.of(kernels), now=1000.0 + 7300))
    assert shown.cells[:7] == [name, "3.2 GB", "2.0 GB", "2 h ago", "b.ipynb", "", ""]
    assert "script" not in shown.elements
    offered = start_form(waiting_for("a.ipynb"), now=0.0)
    assert "<b>List them.</b> Run a cell in a notebook to resume its kernel." in offered
    assert "until you start the server with <b>List them</b>" in offered
    assert "And 5 more." in start_form(waiting_for(*map(str, range(NAMED + 5))), now=0.0)


@pytest.fixture
def offering():
    """Return a spawner that offers a clean start, for a user of which a session waits."""

    class Started(SimpleLocalProcessSpawner):
        fails = False

        async def start(self):
            self.started_with = {k: v for k, v in self.get_env().items() if "CLEAN" in k}
            if self.fails:
                raise OSError("no such program")
            return "http://127.0.0.1:1"

        async def stop(self, now=False):
            """There is no process."""

        def get_env(self):
            return {}

    spawner = with_suspend(Started)(
        offer_clean_start=True, options_form="<input name=size>", user_options={"size": ["small"]}
    )
    spawner.load_state({"pid": 0, WAITING: msgspec.to_builtins(waiting_for("a.ipynb"))})
    return spawner


def test_the_form_comes_before_the_spawners_own_and_only_while_something_waits(offering):
    shown = asyncio.run(offering.get_options_form())
    assert shown.index("a.ipynb") < shown.index("<input name=size>")
    offering.offer_clean_start = False
    assert asyncio.run(offering.get_options_form()) == "<input name=size>"
    nothing = with_suspend("simple")(offer_clean_start=True)
    assert asyncio.run(nothing.get_options_form()) == ""


def test_the_choice_is_no_option_of_the_spawner(offering):
    data = {"size": ["big"], "gpuckpt_start": ["clean"]}
    assert asyncio.run(offering.run_options_from_form(data)) == {"size": ["big"]}
    only_ours = {"gpuckpt_start": ["clean"]}
    assert asyncio.run(offering.run_options_from_form(only_ours)) == {"size": ["small"]}


def start(spawner, *chosen):
    """Start a server by a form as the hub does; return the variables of its choice."""
    arguments = {"gpuckpt_start": [one.encode() for one in chosen]} if chosen else {}
    spawner.handler = SimpleNamespace(request=SimpleNamespace(body_arguments=arguments))
    asyncio.run(spawner.start())
    return spawner.started_with


@pytest.mark.parametrize("chosen", [["list"], ["clean"], ["clean", "list"], ["<b>"], []])
def test_the_choice_counts_for_one_start(offering, chosen):
    is_clean = chosen == ["clean"]
    # This form led to no start: the hub was busy.
    asyncio.run(offering.run_options_from_form({"gpuckpt_start": ["clean"]}))
    assert start(offering, *chosen) == ({"JUPYTER_GPUCKPT_CLEAN_START": "1"} if is_clean else {})
    asyncio.run(offering.stop())
    assert start(offering) == {}
    offering.offer_clean_start = False
    asyncio.run(offering.stop())
    assert start(offering, "clean") == {}


def waits(spawner):
    """Return the names of what waits by the state that the hub stores, and check that the form says the same."""
    stored = SpawnerState.from_state(spawner.get_state())
    names = [kernel.name for kernel in (stored.set_aside + stored.waiting).kernels]
    shown = Cells(asyncio.run(spawner.get_options_form())).cells[::4]
    assert shown == names
    return names


def test_a_server_that_never_answers_loses_nothing_of_what_waits(offering):
    # It does not start, or starts and does not come up.
    for chosen in ("clean", "list", "clean", "clean", "list"):
        offering.fails = not offering.fails
        with suppress(OSError):
            start(offering, chosen)
        asyncio.run(offering.stop())
        assert waits(offering) == ["a.ipynb"], chosen


def test_what_a_clean_start_sets_aside_outlives_the_servers_crash(offering):
    start(offering, "clean")
    assert waits(offering) == ["a.ipynb"]
    # Nobody stops it. The hub may start anew in between.
    again = type(offering)(offer_clean_start=True)
    again.load_state(offering.get_state())
    for spawner in (offering, again):
        start(spawner, "list")
        asyncio.run(spawner.stop())
        assert waits(spawner) == ["a.ipynb"]


def test_without_jupyterhub_the_import_says_what_to_install():
    program = "import sys; sys.modules['jupyterhub'] = None; import jupyter_gpuckpt.hub"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "pip install 'jupyter-gpuckpt[hub]'" in done.stderr.splitlines()[-1]
