"""The order of a session's snapshots, which several machines made whose clocks differ: every machine is offered the true newest."""

from jupyter_gpuckpt.daemon.remotes.leases import KernelLease
from jupyter_gpuckpt.remote.remote_sessions import Facts, RemoteSession, RemoteSnapshot
from jupyter_gpuckpt.snapshots.save import EarlierSnapshots
from jupyter_gpuckpt.wire.snapshot_order import MAX_ARRIVING_NUMBER, MAX_NUMBER, Making
from jupyter_gpuckpt.wire.states import KernelState
from tests.remote.test_daemon_leases import two, until  # noqa: F401 - a fixture


def number_of_next(machine):
    earlier = EarlierSnapshots(machine.store, "k1")
    return earlier.number_of(Making("s", machine.leases.highest_number("k1")))


async def save(machine, *snapshots):
    """Save snapshots as the machine's daemon numbers them, each with the time that the machine's clock shows; upload them."""
    for snapshot_id, created in snapshots:
        machine.save(snapshot_id, created, number=number_of_next(machine))
    await machine.until_uploaded(*(name for name, _ in snapshots))


async def offered(machine):
    """Return the snapshots of the session as they are offered, and the notebook's newest facts."""
    [session] = (await machine.at_remote.sessions("share")).sessions
    return [one.snapshot_id for one in session.snapshots]


async def suspend(machine, kernel, snapshot_id):
    machine.suspend(kernel, snapshot_id)
    await until(lambda: machine.session().lease is None)


async def go_on(machine, snapshot_id):
    """Fetch a snapshot and resume the kernel from it; return the kernel."""
    await machine.fetched("share", snapshot_id)
    await machine.require(snapshot_id)
    kernel = machine.kernels.find("k1") or machine.run(snapshot_id)
    kernel.record.state = KernelState.RUNNING
    machine.leases.resumed("k1")
    return kernel


def test_what_was_made_last_is_the_newest_although_its_machine_is_behind(two):  # noqa: F811
    async def test(a, b):
        kernel = a.run()
        await a.start()
        await b.start()
        await save(a, ("s1", 5000.0), ("s2", 6000.0))
        await until(lambda: a.session().lease)
        await suspend(a, kernel, "s2")
        kernel = await go_on(b, "s2")
        await save(b, ("s3", 70.0))
        assert await offered(a) == await offered(b) == ["s3", "s2", "s1"]
        # Back on the first machine, whose clock was set back meanwhile.
        await suspend(b, kernel, "s3")
        await go_on(a, "s3")
        await save(a, ("s4", 8.0))
        assert await offered(b) == ["s4", "s3", "s2", "s1"]
        assert [one.snapshot_id for one in a.store.snapshots()] == ["s4", "s3", "s2", "s1"]

    two(test)


def test_who_goes_on_from_an_older_snapshot_makes_the_newest(two):  # noqa: F811
    async def test(a, b):
        kernel = a.run()
        await a.start()
        await b.start()
        await save(a, ("s1", 50.0), ("s2", 60.0), ("s3", 70.0))
        await until(lambda: a.session().lease)
        await suspend(a, kernel, "s3")
        await go_on(b, "s1")
        assert number_of_next(b) == 4
        await save(b, ("s4", 8.0))
        assert await offered(a) == ["s4", "s3", "s2", "s1"]

    two(test)


def test_what_is_uploaded_late_counts_from_when_it_was_made(two):  # noqa: F811
    async def test(a, b):
        await a.start()
        await b.start()
        kernel = a.run()
        await save(a, ("s1", 50.0))
        await until(lambda: a.session().lease)
        await suspend(a, kernel, "s1")
        # It was made in the first term, but nobody has seen it yet when the other machine goes on.
        late = number_of_next(a)
        await go_on(b, "s1")
        await save(b, ("s2", 8.0))
        a.save("late", 90.0, number=late)
        await a.until_uploaded("late")
        assert await offered(b) == ["s2", "late", "s1"]

    two(test)


def entry(snapshot_id, number=0, term=0, created=1.0):
    manifest = f"manifests/{snapshot_id}.{'0' * 16}"
    return RemoteSnapshot(snapshot_id, "k1", manifest, b"d" * 32, created, term=term, number=number)


def test_terms_come_before_numbers_and_numbers_before_times():
    newest_first = [
        entry("a", 1, term=3, created=1.0),
        entry("b", 9, term=2, created=2.0),
        entry("c", 8, term=2, created=9.0),
        entry("d", 5, term=0, created=3.0),
        entry("e", 0, term=0, created=8.0),
        entry("f", 0, term=0, created=7.0),
    ]
    session = RemoteSession(Facts("k1"), 1, newest_first[::2] + newest_first[1::2])
    assert session.listed == newest_first
    assert session.highest == 9
    hostile = [*newest_first, entry("h", MAX_NUMBER), entry("i", MAX_ARRIVING_NUMBER - 1)]
    assert RemoteSession(Facts("k1"), 1, hostile).highest == MAX_ARRIVING_NUMBER - 1


def test_a_snapshot_is_of_the_term_in_which_it_was_made():
    lease = KernelLease("k1")
    assert (lease.term_of(1), lease.highest) == (0, 0)
    # Granted after number 2, and once more to the same daemon; nothing was saved in term 5.
    for term, highest in ((3, 2), (3, 4), (5, 7), (6, 7), (8, 9)):
        lease = lease.renewed(KernelLease("k1", "a", term), highest)
    terms = {number: lease.term_of(number) for number in range(1, 12)}
    assert terms == {1: 0, 2: 0, **dict.fromkeys(range(3, 8), 3), 8: 6, 9: 6, 10: 8, 11: 8}
    assert lease.highest == 9
    # Those of another session say nothing about this one.
    other = lease.renewed(KernelLease("branch", "a", 1), 11)
    assert (other.term_of(11), other.term_of(12)) == (0, 1)
    for term in range(10, 400):
        lease = lease.renewed(KernelLease("k1", "a", term), term)
    assert len(lease.terms) <= 101
    assert lease.term_of(400) == 399
