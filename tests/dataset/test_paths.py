"""A dataset's paths stay inside its root, and are refused before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclab.core.errors import DatasetRefused
from kclab.dataset.paths import contained

OUTSIDE = [
    "/etc/hostname",
    "../outside.safetensors",
    "blob/../../outside.safetensors",
    "blob/../x.safetensors",
    "C:\\x.safetensors",
    "C:x.safetensors",
    "blob\\..\\..\\x.safetensors",
    "blob/x\0.safetensors",
    "",
    ".",
    "input.pt",
    "blob/x.PKL",
]


@pytest.mark.parametrize("text", OUTSIDE)
def test_a_path_that_could_leave_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DatasetRefused):
        contained(tmp_path, text)


@pytest.mark.parametrize("text", ["./a/b.safetensors", "a/./b.safetensors", "a//b.safetensors"])
def test_a_leading_dot_is_dropped(tmp_path: Path, text: str) -> None:
    assert contained(tmp_path, text) == tmp_path.resolve() / "a" / "b.safetensors"


def test_links_that_leave_the_root_are_refused(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret.safetensors").write_bytes(b"x")
    (root / "file.safetensors").symlink_to(outside / "secret.safetensors")
    (root / "folder").symlink_to(outside)
    for text in ("file.safetensors", "folder/secret.safetensors", "folder/none.safetensors"):
        with pytest.raises(DatasetRefused, match="symbolic link"):
            contained(root, text)


def test_a_link_inside_the_root_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.safetensors").write_bytes(b"x")
    (tmp_path / "alias").symlink_to("real")
    found = contained(tmp_path, "alias/a.safetensors")
    assert found == tmp_path.resolve() / "real" / "a.safetensors"
