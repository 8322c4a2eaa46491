"""The relay's settings: `c.GpuCkptRelay.keep_minutes = ...`."""

from __future__ import annotations

from traitlets import Float, Int
from traitlets.config import Configurable


class GpuCkptRelay(Configurable):
    """The settings of kernels that editors start; read when the relay starts."""

    keep_minutes = Float(
        10.0,
        min=0.0,
        help="""Minutes that an idle kernel stays in memory after its editor has gone; then it is suspended. A running cell runs to its
        end before. Default: 10.""",
    ).tag(config=True)

    keep_sessions = Int(
        10,
        min=0,
        help="""How many kernels are kept whose editor has gone. Beyond that the ones that were left first are ended, those without
        a notebook before the others. Default: 10.""",
    ).tag(config=True)

    keep_days = Float(
        14.0,
        min=0.0,
        help="""Days after which a kernel is ended whose editor has not come back. Default: 14.""",
    ).tag(config=True)

    undo_shutdown_for = Float(
        30.0,
        min=0.0,
        help="""Seconds for which `%gpuckpt resume` brings a kernel back that its client has shut down; until then its processes are
        stopped. Default: 30. 0: it is ended at once.""",
    ).tag(config=True)
