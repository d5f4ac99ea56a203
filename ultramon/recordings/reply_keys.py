"""What tells a reply of a transcript from others, short enough to be kept for each of them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ultramon.hosts.transcripts.records import Report

COMPACTION = "compaction"
"""Stands for a compaction among the keys of replies."""
MAX_KEYS = 4096
"""Of one transcript; what is copied behind so many replies counts as its own."""


def reply_key(report: Report) -> str:
    """Return what tells a reply from others: its id and its counts, each as a short sum.

    Either half is empty where the transcript does not say it.
    """
    counts = (
        report.input_tokens,
        report.cache_read_tokens,
        report.cache_creation_tokens,
        report.output_tokens,
    )
    name = report.message_id if report.copied_id is None else report.copied_id
    return f"{'' if name is None else _sum(name)}.{_sum(str(counts))}"


def _sum(text: str) -> str:
    # JSON can hold lone surrogates, which UTF-8 cannot.
    data = text.encode("utf-8", "surrogatepass")
    # One sum of 32 bits might be equal by chance among some ten thousand replies.
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}"
