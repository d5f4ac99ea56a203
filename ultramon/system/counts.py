"""Token counts in few cells. Standard library only and cheap: hooks load it."""

from __future__ import annotations


def short_tokens(count: int | None) -> str:
    """Write a token count in few cells: ``950``, ``2.5k``, ``20k``, ``1.2M``; ``?`` for None."""
    if count is None:
        return "?"
    if count < 1_000:
        return str(count)
    # Each form ends where rounding would give it one digit more.
    if count < 9_950:
        return f"{count / 1_000:.1f}k"
    if count < 999_500:
        return f"{count / 1_000:.0f}k"
    return f"{count / 1_000_000:.1f}M"
