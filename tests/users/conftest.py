"""Two ordinary users of one machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import uids
from tests.users.user import User


@pytest.fixture(scope="module")
def bob(criu) -> Iterator[User]:
    """Yield the attacker."""
    if os.geteuid():
        pytest.skip("being two other users needs root")
    with User(uids.first() + 1) as user:
        yield user


@pytest.fixture(scope="module")
def alice(criu) -> Iterator[User]:
    """Yield a user with a kernel that counts, and a snapshot of it; `tests.users.owned` has her verbs."""
    if os.geteuid():
        pytest.skip("being two other users needs root")
    with User(uids.first()) as user:
        user.run("from tests.users import owned\nmine = owned.Owned()")
        try:
            yield user
        finally:
            user.run("mine.close()")
