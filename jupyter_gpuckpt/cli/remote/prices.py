"""Estimates of the cost of uploads, from counted requests and bytes and a table of prices."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from ...wire.plurals import counted
from ...wire.snapshot_records import RemoteUploads
from .. import printing

#: The number of autosaves in 30 days, one every ten minutes.
AUTOSAVES = 30 * 24 * 6


class Prices(NamedTuple):
    """A provider's prices in US dollars: per GB and month, per 1000 writes or lists, per 1000 reads, per GB that leaves it."""

    stored: float
    writes: float
    reads: float
    received: float


#: Amazon's list prices of S3 Standard in us-east-1. They are used for the other providers, too, and the output says so.
LIST_PRICES = Prices(0.023, 0.005, 0.0004, 0.09)


def parsed(text: str) -> Prices:
    """Parse prices of the form STORED,WRITES,READS,RECEIVED."""
    try:
        prices = Prices(*map(float, text.split(",")))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError("it has to be STORED,WRITES,READS,RECEIVED") from None
    if not all(0 <= one < 1e6 for one in prices):
        raise argparse.ArgumentTypeError("a price is a number from 0 on")
    return prices


def per_month(uploads: RemoteUploads, prices: Prices) -> tuple[float, float]:
    """Return the monthly cost of a kernel: of autosaves like the average upload so far, and of its stored bytes."""
    traffic = uploads.traffic
    all_uploads = (
        traffic.writes / 1000 * prices.writes
        + traffic.reads / 1000 * prices.reads
        + traffic.received_bytes / 1e9 * prices.received
    )
    stored = traffic.sent_bytes / 1e9 * prices.stored
    return AUTOSAVES * all_uploads / traffic.uploads, stored / max(1, len(traffic.kernels))


def of_reading(
    reads: int, writes: int, received_bytes: int, provider: str, given: Prices | None
) -> str:
    """Format the cost of requests that read; empty without known prices."""
    prices = given or (LIST_PRICES if provider else None)
    if prices is None:
        return ""
    cost = reads / 1000 * prices.reads + writes / 1000 * prices.writes
    return f": about ${cost + received_bytes / 1e9 * prices.received:.4f}"


def as_lines(uploads: RemoteUploads, given: Prices | None) -> list[str]:
    """Format the counted traffic and its cost as lines: none before the first upload, no cost without known prices."""
    traffic, count = uploads.traffic, len(uploads.traffic.kernels)
    if not traffic.uploads:
        return []
    lines = [
        f"{uploads.remote}: {counted(traffic.uploads, 'upload')} of {counted(count, 'kernel')} from this machine took"
        f" {counted(traffic.writes, 'write')} and {counted(traffic.reads, 'read')};"
        f" {printing.size(traffic.sent_bytes)} sent, {printing.size(traffic.received_bytes)} received."
    ]
    prices = given or (LIST_PRICES if uploads.provider else None)
    if prices is None:
        return [
            *lines,
            f"{uploads.remote}: the prices of its provider are not known; see --prices.",
        ]
    autosaves, stored = per_month(uploads, prices)
    grows = printing.size(AUTOSAVES * traffic.sent_bytes // traffic.uploads)
    whose = "as given" if given else "list prices of S3 Standard"
    lines.append(
        f"{uploads.remote}: about ${autosaves + stored:.2f} per kernel and month: ${autosaves:.2f} for an autosave every 10 minutes like"
        f" the uploads so far ({grows} in all), and ${stored:.2f} for what is stored now. Assumed ({whose}):"
        f" ${prices.stored:g} per GB and month, ${prices.writes:g} per 1000 writes, ${prices.reads:g} per 1000 reads,"
        f" ${prices.received:g} per GB received."
    )
    return lines
