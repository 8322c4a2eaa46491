"""A page that connects again in the middle of a cell, in all orders of cut, reconnect, suspend, resume and the cell's end."""

import asyncio
import itertools

import pytest

from tests.unit.gate_scene import Scene


def orders(*chains):
    """Return all orders in which the events of each chain keep theirs."""
    events = [event for chain in chains for event in chain]
    found = set()
    for order in itertools.permutations(events):
        kept = [tuple(event for event in order if event in chain) for chain in chains]
        if kept == list(chains):
            found.add(order)
    return sorted(found)


def is_possible(order):
    """Return whether the kernel has a process when it replies."""
    if "suspend_fails" in order:
        return True
    return not order.index("suspend_ends") < order.index("reply") < order.index("resume")


PAGE, REPLY = ("cut", "reconnect"), ("reply",)
ORDERS = [
    order
    for suspend in (
        ("suspend_begins", "suspend_ends", "resume"),
        ("suspend_begins", "suspend_fails"),
    )
    for order in orders(PAGE, suspend, REPLY)
    if is_possible(order)
]


@pytest.mark.parametrize("is_new", [False, True], ids=["same page", "another page"])
def test_in_every_order_a_page_shows_the_true_status_all_output_once_and_the_reply(
    tmp_path, is_new
):
    assert len(ORDERS) == 75

    async def play(order, folder):
        folder.mkdir()
        scene = Scene(folder, is_new=is_new)
        await scene.begin()
        for event in order:
            if scene.is_running:
                scene.kernel.prints()
            try:
                await getattr(scene, event)()
                await scene.settle()
                scene.check()
            except AssertionError as error:
                raise AssertionError(f"{event} of {order}: {error}") from error
        try:
            await scene.end()
        except AssertionError as error:
            raise AssertionError(f"end of {order}: {error}") from error

    failed = []
    for number, order in enumerate(ORDERS):
        try:
            asyncio.run(play(order, tmp_path / str(number)))
        except AssertionError as error:
            failed.append(str(error))
    assert not failed, f"{len(failed)} orders:\n" + "\n".join(failed)
