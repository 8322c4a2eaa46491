"""How parts of the server are told what happens to its kernels."""

import asyncio

from jupyter_gpuckpt.server.kernels.kernel_listener import KernelListener, KernelListeners


class Noted(KernelListener):
    """A listener that records its calls in a common list; it keeps a kernel that is shut down if `keeps`."""

    def __init__(self, notes, name, keeps=False):
        self.notes, self.name, self.keeps = notes, name, keeps

    def kernel_changed(self, kernel_id):
        self.notes.append((self.name, kernel_id))

    async def before_freeze(self, kernel_id):
        await asyncio.sleep(0)
        self.notes.append((self.name, kernel_id))

    async def keep_shut_down(self, kernel_id):
        self.notes.append((self.name, kernel_id))
        return self.keeps


def test_everything_that_a_listener_can_be_told_reaches_all():
    methods = {name for name in vars(KernelListener) if not name.startswith("_")}
    assert methods <= set(vars(KernelListeners))
    for name in methods:
        assert getattr(KernelListeners, name).__closure__[0].cell_contents == name


def test_listeners_are_told_and_asked_in_their_order():
    notes = []
    listeners = KernelListeners()
    listeners.kernel_changed("early")
    listeners.add(Noted(notes, "first"), KernelListener(), Noted(notes, "second"))
    listeners.kernel_changed("k")
    asyncio.run(listeners.before_freeze("f"))
    assert notes == [("first", "k"), ("second", "k"), ("first", "f"), ("second", "f")]


def test_a_listener_that_raises_costs_the_others_nothing(caplog):
    class Raising(KernelListener):
        def kernel_changed(self, kernel_id):
            raise ValueError(kernel_id)

    notes = []
    listeners = KernelListeners()
    listeners.add(Raising(), Noted(notes, "second"))
    listeners.kernel_changed("k")
    assert notes == [("second", "k")]
    assert "Raising failed in kernel_changed" in caplog.text


def test_nobody_is_asked_to_keep_a_kernel_that_is_kept_already():
    notes = []
    listeners = KernelListeners()
    assert asyncio.run(listeners.keep_shut_down("k")) is False
    listeners.add(Noted(notes, "first"), Noted(notes, "second", keeps=True), Noted(notes, "third"))
    assert asyncio.run(listeners.keep_shut_down("k")) is True
    assert notes == [("first", "k"), ("second", "k")]
