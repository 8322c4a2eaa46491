"""Limits of what users keep, and rules for how long, which an administrator sets for all servers of a hub.

They are advice: a user's own configuration has precedence, and the volume's or the bucket's quota is what enforces a limit.
"""

from __future__ import annotations

import json

from ..errors import ConfigurationError
from ..wire import daemon_settings
from ..wire.hub_records import Usage
from ..wire.plurals import size


def environment(retention: dict[str, float], disk_limit: int) -> dict[str, str]:
    """Return the variables by which servers get the rules; automatic snapshots beyond the limit are removed, unless a rule has another."""
    rules = ({"max_bytes": disk_limit} if disk_limit else {}) | retention
    return {daemon_settings.RETENTION_VARIABLE: json.dumps(rules)} if rules else {}


def check(retention: dict[str, float]) -> None:
    """Raise ConfigurationError for rules that servers would ignore."""
    try:
        daemon_settings.require_retention(retention)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"c.GpuCkptSpawnerMixin.retention is not valid: {error.message}", hint=error.hint
        ) from error


def exceeds(usage: Usage) -> bool:
    """Return whether a user's snapshots take more than the limit."""
    return 0 < usage.limit_bytes < usage.disk_bytes


def exceeded(usage: Usage) -> str:
    """Return a sentence for a user whose snapshots take more than the limit; an empty string for others."""
    if not exceeds(usage):
        return ""
    return (
        f"Your snapshots take {size(usage.disk_bytes)} on the disk; your limit is {size(usage.limit_bytes)}."
        " Please delete some that you do not need."
    )
