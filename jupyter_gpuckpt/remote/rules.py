"""The rule of a remote for the snapshots to keep: one object for all machines, replaced by compare-and-swap. Without it all are kept."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from ..errors import FarObjectInvalid, FarObjectMissing, StoreUnavailable
from ..store.manifest_checks import is_time
from ..wire.retention_policy import RetentionPolicy
from .objects import Objects, Remembering, Sealing, Stored
from .remote_sessions import Text
from .sealing import invalid

NAME = "retention"
_MAX_RULE_BYTES = 64 << 10
_ATTEMPTS = 20


class Rule(msgspec.Struct, frozen=True):
    """The rule. `generation` grows by one with every change. `host_name`, `changed_at`: who changed it and when, for people only.

    A version that does not know a part of the policy refuses the whole object, so that it applies no half of it.
    """

    generation: Annotated[int, msgspec.Meta(ge=1)]
    policy: RetentionPolicy
    host_name: Text = ""
    changed_at: float = 0.0


def read(bucket: Objects, seal: Sealing, seen: Remembering) -> Rule | None:
    """Return the rule of a remote; None if none was ever set.

    Raises FarObjectInvalid, also for a rule that is older than one that this machine has seen.
    """
    newest = seen.newest(NAME)
    stored = _stored(bucket)
    return _opened(stored, seal, seen, newest) if stored else None


def replace(
    bucket: Objects,
    seal: Sealing,
    seen: Remembering,
    policy: RetentionPolicy,
    *,
    host_name: str,
    now: float,
) -> Rule:
    """Set the rule of a remote, also in place of one that is damaged; return it."""
    for _ in range(_ATTEMPTS):
        newest, stored = seen.newest(NAME), _stored(bucket)
        last = newest
        if stored:
            try:
                last = _opened(stored, seal, seen, newest).generation
            except FarObjectInvalid:
                last = newest
        made = Rule(last + 1, policy, host_name, now)
        data = seal.seal_record(NAME, made)
        done = bucket.swap(NAME, data, stored.version) if stored else bucket.create(NAME, data)
        if done:
            seen.check(NAME, made.generation, 0)
            return made
    raise StoreUnavailable(f"Other machines keep changing the rule of {bucket.name}.")


def _stored(bucket: Objects) -> Stored | None:
    try:
        return bucket.get(NAME, max_bytes=_MAX_RULE_BYTES)
    except FarObjectMissing:
        return None


def _opened(stored: Stored, seal: Sealing, seen: Remembering, newest: int) -> Rule:
    rule = seal.open_record(NAME, stored.data, Rule)
    if not (is_time(rule.changed_at) and math.isfinite(rule.policy.keep_within_seconds)):
        raise invalid(NAME, "a time in it is impossible")
    seen.check(NAME, rule.generation, newest)
    return rule
