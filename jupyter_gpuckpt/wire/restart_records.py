"""Records about restarts that can be undone, shared by clients and the daemon."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .protocol import SaveRequest


class SetAsideRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PUT /kernels/{id}/former: keep the process for an undo of the restart that follows, save it meanwhile, and end it then.

    `keep_seconds`: how long it is kept if it cannot be saved.
    """

    save: SaveRequest
    keep_seconds: Annotated[float, msgspec.Meta(ge=0)]
