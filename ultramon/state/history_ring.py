"""The last readings of one agent as bytes: written with its state, thinned, never growing.

Standard library only and cheap: every hook loads it. `ultramon.state.history` reads the bytes.

A reading takes 16 bytes, all numbers big-endian: its time in ms (6), tokens (4), epoch (4), source
(1), and a checksum of the level's name (1), which differs where a rung was crossed.
"""

from __future__ import annotations

from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.state.record import StateRecord

HISTORY_POINTS = 64
POINT_BYTES = 16
FULL_BYTES = HISTORY_POINTS * POINT_BYTES
SOURCES = ("unknown", "estimated", "anchored", "reported")
"""The sources of readings, by the number that stands for each."""
LAST_MS = 253_402_300_799_000
"""The last time of a reading: the end of the year 9999, as for `ultramon.system.timestamps`."""
_THINNED_POINTS = 48
"""The most points that thinning leaves, so that it is due once in sixteen readings."""
_MAGIC = b"umhist1\n"
_HEADER_BYTES = len(_MAGIC) + 1 + 4
FILE_BYTES = _HEADER_BYTES + FULL_BYTES
"""The size of a ring: magic, the number of points (1), CRC-32 of the rest (4), points and zeros."""


def encode_point(record: StateRecord) -> bytes:
    """Return the reading of a state; nothing where it has none, or where a share alone is known."""
    at = record.measured_at
    if at is None or (record.context_limit is None and record.usage_ratio is not None):
        return b""
    source, level = record.tokens_source, record.threshold_status
    # Each number has a fixed place: one that is too large is stored as the largest.
    number = min(max(round(at * 1000), 0), LAST_MS)
    number = number << 32 | min(max(record.estimated_tokens, 0), 0xFFFF_FFFF)
    number = number << 32 | min(max(record.epoch, 0), 0xFFFF_FFFF)
    number = number << 8 | (SOURCES.index(source) if source in SOURCES else 0)
    number = number << 8 | (crc32(level.encode("utf-8", "replace")) & 0xFF if level else 0)
    return number.to_bytes(POINT_BYTES, "big")


def add_point(points: bytes, point: bytes) -> bytes:
    """Return a ring's points with another one, thinned where it would not fit.

    The same object where there is nothing to add: ``point`` is empty, or the last one.
    """
    # A state is stored again without a new reading, at least every 30 s.
    if not point or points[-POINT_BYTES:] == point:
        return points
    if len(points) >= FULL_BYTES:
        points = thin(points)
    return points + point


def thin(points: bytes) -> bytes:
    """Return a quarter fewer points, so that every epoch can still be seen as a whole.

    The first and the last point of an epoch and those at which the level changed stay. The others
    go where they lie closest together, by the duration of their epoch and sooner the older it is.
    """
    rows = [points[at : at + POINT_BYTES] for at in range(0, len(points), POINT_BYTES)]
    count = len(rows) - _THINNED_POINTS
    # Crossings go only where all the other points have to stay.
    dropped = _crowded(rows, count) or _crowded(rows, count, keeps_crossings=False)
    if not dropped:  # more epochs than there is room for
        return points[count * POINT_BYTES :]
    return b"".join(row for number, row in enumerate(rows) if number not in dropped)


def _crowded(rows: list[bytes], count: int, *, keeps_crossings: bool = True) -> set[int]:
    times = [int.from_bytes(row[:6], "big") for row in rows]
    epochs = [row[10:14] for row in rows]
    ends = [n for n in range(1, len(rows)) if epochs[n] != epochs[n - 1]]
    weights = []
    for age, (first, end) in enumerate(
        zip(reversed([0, *ends]), reversed([*ends, len(rows)]), strict=True)
    ):
        # Times may be equal, or run backwards where the clock was set back.
        duration = abs(times[end - 1] - times[first]) or 1
        weights += [
            # By the age of their epoch: the window of now stays visible the longest.
            (abs(times[n + 1] - times[n - 1]) / duration / (1 + age), n)
            for n in range(first + 1, end - 1)
            if not (keeps_crossings and rows[n][15] != rows[n - 1][15])
        ]
    dropped: set[int] = set()
    for _, n in sorted(weights):
        if len(dropped) == count:
            break
        # One of two neighbours is dropped at a time: else a whole cluster would go at once.
        if n - 1 not in dropped and n + 1 not in dropped:
            dropped.add(n)
    return dropped


def pack(points: bytes) -> bytes:
    """Return the bytes of a ring's file."""
    body = bytes((len(points) // POINT_BYTES,)) + points.ljust(FULL_BYTES, b"\0")
    return b"%s%s%s" % (_MAGIC, crc32(body).to_bytes(4, "big"), body)


def unpack(data: bytes) -> bytes:
    """Return the points in a ring's file, none of a torn or foreign one."""
    if len(data) != FILE_BYTES or not data.startswith(_MAGIC):
        return b""
    body = data[len(_MAGIC) + 4 :]
    if body[0] > HISTORY_POINTS or crc32(body).to_bytes(4, "big") != data[len(_MAGIC) :][:4]:
        return b""
    return body[1 : 1 + body[0] * POINT_BYTES]
