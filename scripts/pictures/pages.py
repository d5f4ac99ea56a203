"""Pages as chromium draws them, as small PNG files."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

_COLOURS = """async picture => {
  const bytes = Uint8Array.from(atob(picture), one => one.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes]));
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map(), keys = new Uint32Array(data.length / 4);
  for (let at = 0; at < keys.length; at++) {
    const key = data[at * 4] << 16 | data[at * 4 + 1] << 8 | data[at * 4 + 2];
    keys[at] = key;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const colours = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([key, count]) => (
    {key, weight: Math.sqrt(count), parts: [key >> 16, key >> 8 & 255, key & 255],
     least: Infinity, place: 0}));
  const palette = [];
  while (palette.length < Math.min(256, colours.length)) {
    const chosen = colours.reduce((best, one) =>
      one.weight * one.least > best.weight * best.least ? one : best);
    for (const one of colours) {
      const far = one.parts.reduce((sum, part, at) => sum + (part - chosen.parts[at]) ** 2, 0);
      if (far < one.least) [one.least, one.place] = [far, palette.length];
    }
    palette.push(chosen.parts);
  }
  const places = new Map(colours.map(one => [one.key, one.place]));
  let pixels = "";
  for (let at = 0; at < keys.length; at += 4096)
    pixels += String.fromCharCode(...Array.from(keys.subarray(at, at + 4096), k => places.get(k)));
  return [image.width, image.height, palette.flat(), btoa(pixels)];
}"""


def shrink(picture: bytes, blank: Page) -> bytes:
    """Return a PNG with at most 256 colours, each as near as possible to what it stands for.

    A rare colour that no other is near to, as of a sign in a text, is kept before a frequent one
    between two others, as of the edges of letters.

    Args:
        picture: A PNG.
        blank: A page without a content policy, whose browser reads the PNG.
    """
    given = base64.b64encode(picture).decode()
    width, height, palette, encoded = blank.evaluate(_COLOURS, given)
    pixels = base64.b64decode(encoded)
    # Each row begins with its filter, none: palettes are worse with any other.
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, len(pixels), width))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes(palette)),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
