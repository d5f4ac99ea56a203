"""Reads how large a recorded image is, and estimates its tokens."""

from __future__ import annotations

import binascii
from io import BytesIO
from typing import TYPE_CHECKING

from ultramon.context.image_tokens import estimate_image_tokens

if TYPE_CHECKING:
    from ultramon.hosts.transcripts.records import Image

_KINDS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF")
"""How the formats begin that providers take; the library would read others as XML."""


def image_tokens(image: Image, model: str | None) -> int | None:
    """Return the estimated tokens of an image.

    Args:
        image: As recorded.
        model: That looks at it; None = unknown.

    Returns:
        At least 1; None where its size or the model's formula is unknown.
    """
    text = image.data
    try:
        head = binascii.a2b_base64(text[: len(text) // 4 * 4])
    except ValueError:
        return None
    if not head.startswith(_KINDS):
        return None
    # It loads a client for HTTP too, 40 ms, which a report without images need not wait for.
    import imagesize

    # What makes no sense to it has a size of -1.
    width, height = imagesize.get(BytesIO(head))
    if width < 1 or height < 1:
        return None
    return estimate_image_tokens(width, height, model, image.detail)
