"""Two ordinary users of one machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.users.user import ALICE, BOB, User


@pytest.fixture(scope="module")
def bob(criu) -> Iterator[User]:
    """The attacker."""
    if os.geteuid():
        pytest.skip("being two other users needs root")
    with User(BOB) as user:
        yield user


@pytest.fixture(scope="module")
def alice(criu) -> Iterator[User]:
    """A user with a kernel that counts, and a snapshot of it; `tests.users.owned` has her verbs."""
    if os.geteuid():
        pytest.skip("being two other users needs root")
    with User(ALICE) as user:
        user.run("from tests.users import owned\nmine = owned.Owned()")
        try:
            yield user
        finally:
            user.run("mine.close()")
