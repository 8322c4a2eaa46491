"""The user's rules for the snapshots to keep, in the local store and in remotes (`store/retention.py` judges by them)."""

from __future__ import annotations

from typing import Annotated

import msgspec

#: The largest values that make sense: a million snapshots, a thousand years, and a million terabytes.
MAX_COUNT, MAX_SECONDS, MAX_BYTES = 10**6, 1000 * 366 * 86400.0, 10**18
#: How many snapshots that tools took of a kernel are kept where nobody has said another number.
KEPT_TOOL_SAVES = 40


class RetentionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules by which snapshots are kept, as in restic's `forget`: by any keep rule that applies (`store/retention.py`).

    Keep rules apply to each kernel separately; 0 means no rule, and without rules all are kept. Then, if the snapshots take more than
    `max_bytes` together (0: no limit), the oldest are removed until they fit. The policy applies to automatic snapshots, with
    `manual_too` also to those that users took; never to pinned ones or those that a kernel needs. Of suspends that users requested
    the last `keep_suspends` of each kernel are kept regardless of other rules (0: all), and all with a title or note. Of snapshots
    that tools took, the last `keep_tool_saves` of each kernel and its branches by tools are kept (0: as other automatic ones).

    `thins`: periodic saves are thinned, the more the older they are; of the other rules only `max_bytes` applies to them.
    """

    keep_last: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)] = 0
    #: The age, in seconds before the kernel's latest snapshot, up to which snapshots are kept.
    keep_within_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    max_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)] = 0
    manual_too: bool = False
    keep_suspends: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)] = 0
    keep_tool_saves: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)] = 0
    thins: bool = False

    @property
    def removes_nothing(self) -> bool:
        """Return whether the policy removes no snapshot."""
        return self == RetentionPolicy(manual_too=self.manual_too)
