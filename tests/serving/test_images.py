"""Image data in responses: disguises are seen through, damage is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kclab.core.errors import EngineFailed
from kclab.serving.images import decode, image_of, parse_png
from tests.serving.stub_sglang import png

TEXT = base64.b64encode(png()).decode()


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.rstrip("="),
        f"data:image/png;base64,{TEXT}",
        f"data:image/png;charset=utf-8;base64,{TEXT}",
        f"\n{TEXT[:7]}\r\n {TEXT[7:]}\n",
    ],
)
def test_disguised_base64_gives_the_same_bytes(text: str) -> None:
    assert decode(text, "image") == png()


@pytest.mark.parametrize("text", ["iVBO!!Rw0K", "iVBO-Rw_", "ivBOR", "data:image/png,iVBO"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(EngineFailed, match="image: the image data is no base64"):
        decode(text, "image")


def test_png_header_is_read() -> None:
    image = parse_png(png(), "image")
    assert (image.width, image.height, image.channels) == (2, 1, 4)


@pytest.mark.parametrize("data", [b"", b"GIF89a", png()[:20], png()[:-12]])
def test_what_is_no_whole_png_is_refused(data: bytes) -> None:
    with pytest.raises(EngineFailed, match="PNG"):
        parse_png(data, "image")


@pytest.mark.parametrize("item", [None, "text", {}, {"b64_json": 3}, {"b64_json": " "}])
def test_item_without_image_data_is_refused(item: Any) -> None:
    with pytest.raises(EngineFailed, match="image 1"):
        image_of(item, "image 1")
