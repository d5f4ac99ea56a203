"""Finds the images in messages and results of tools, in the forms that providers and hosts write.

Standard library only, because readers import it. Knows no host.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.jsonl import object_in, text_or_none
from ultramon.hosts.transcripts.records import Image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject

_INSIDE = ("content", "contents", "parts", "prompt", "attachments", "functionResponse")
"""Where a message or a result holds blocks."""
_HEAD_CHARS = 1 << 18
"""Of an image: its size stands before its pixels, though a preview may stand before that."""
_IMAGE, _DOCUMENT = "image/", "application/pdf"
_DATA_URL = "data:"


def images_in(
    value: object, at: float | None, file: str | None = None, tool: str | None = None
) -> Iterator[Image]:
    """Yield the images and documents among the blocks of a message.

    Args:
        value: Its content.
        at: Epoch seconds, or None.
        file: The file that the call named whose result it is, or None.
        tool: The tool whose result it is, or None.
    """
    # JSON may nest deeper than Python recurses.
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            data = _data_of(item)
            if data is None:
                stack.extend(item[key] for key in reversed(_INSIDE) if key in item)
            else:
                yield Image(data, at, text_or_none(item.get("detail")), file, tool)


def _data_of(block: JsonObject) -> str | None:
    """Return the beginning of an image as base64, empty where it has none; None = no image."""
    kind = block.get("type")
    if kind == "input_image":  # OpenAI
        return _of_url(block.get("image_url"))
    if kind == "input_file":
        return ""
    if kind in ("image", "document", "pdf"):
        # Anthropic, what Claude Code attaches, MCP.
        inner = object_in(block, "source") or object_in(block, "file")
        if kind == "document" and inner.get("type") not in ("base64", "url", "file"):
            return None
        data = text_or_none(inner.get("data")) or text_or_none(inner.get("base64"))
        data = data or text_or_none(block.get("data")) or ""
        return data[:_HEAD_CHARS] if kind == "image" else ""
    if kind == "file":  # opencode
        mime = text_or_none(block.get("mime")) or ""
        return _of_kind(mime, _of_url(block.get("url")))
    for key in ("inlineData", "fileData"):  # Gemini
        if inner := object_in(block, key):
            mime = text_or_none(inner.get("mimeType")) or ""
            return _of_kind(mime, (text_or_none(inner.get("data")) or "")[:_HEAD_CHARS])
    return None


def _of_kind(mime: str, data: str) -> str | None:
    if mime.startswith(_IMAGE):
        return data
    return "" if mime == _DOCUMENT else None


def _of_url(url: object) -> str:
    """Return the beginning of what a URL holds itself."""
    if not isinstance(url, str) or not url.startswith(_DATA_URL):
        return ""
    start = url.find(",") + 1
    return url[start : start + _HEAD_CHARS] if start else ""
