"""Images as image servers answer them: base64 text in several disguises, then PNG bytes."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import EngineFailed

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
END_CHUNK = b"IEND\xaeB`\x82"
# PNG specification, table 11.1.
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Colour type -> channels."""

_DATA_URL = re.compile(r"\Adata:[^,;]*(?:;[^,;]*)*;base64,", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Image:
    """One decoded image."""

    data: bytes
    """The PNG file."""
    width: int
    height: int
    channels: int
    """4 with an alpha channel."""


def image_of(item: Any, what: str) -> Image:
    """The image of one entry of a response's `data`; `what` names it in errors.

    Raises EngineFailed for a URL, for no data, and for what is no PNG.
    """
    if not isinstance(item, dict):
        raise EngineFailed(f"{what}: an object was expected, not {_told(item)}.")
    text = item.get("b64_json")
    if isinstance(text, str) and text.strip():
        return parse_png(decode(text, what), what)
    if item.get("url"):
        raise EngineFailed(f"{what}: the server answered with a URL, not with image data.")
    raise EngineFailed(f"{what}: no image data (b64_json is {_told(text)}).")


def decode(text: str, what: str) -> bytes:
    """Base64 with or without a `data:` prefix, line breaks and padding; anything else is refused.

    Python's own decoder drops foreign characters silently, which would damage the image.
    """
    plain = _SPACE.sub("", _DATA_URL.sub("", text.strip()))
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise EngineFailed(f"{what}: the image data is no base64 ({error}).") from error


def parse_png(data: bytes, what: str) -> Image:
    """Check the signature and read size and colour type from the header; the rest is not read."""
    if data[:8] != PNG_SIGNATURE:
        begins = data[:8].hex(" ") or "nothing"
        raise EngineFailed(f"{what}: not a PNG file; it begins with {begins}.")
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise EngineFailed(f"{what}: a PNG file of {len(data)} bytes without its header.")
    width, height, _, colour = struct.unpack(">IIBB", data[16:26])
    if END_CHUNK not in data:
        raise EngineFailed(f"{what}: a PNG file of {len(data)} bytes that is cut off.")
    return Image(data, width, height, CHANNELS.get(colour, 0))


def _told(value: Any) -> str:
    return "null" if value is None else f"{value!r:.60}"
