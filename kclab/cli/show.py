"""How single values read in a table: times, identifiers, sizes of tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kclab.core.when import current_us, describe_age, iso_utc, local_time


def dated(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The row with `name` in ISO form put before each time `name_us`."""
    fields: dict[str, Any] = {}
    for key, value in row.items():
        if key.removesuffix("_us") in names and key.endswith("_us"):
            fields[key.removesuffix("_us")] = None if value is None else iso_utc(value)
        fields[key] = value
    return fields


def show_time(instant: int) -> str:
    """A time for a table: its age within a day (`5 min ago`), else local (`Nov 28 14:02`)."""
    now = current_us()
    if 0 <= now - instant < 86_400_000_000:
        return describe_age(instant, now)
    moment, today = local_time(instant), local_time(now)
    return f"{moment:%b %d %H:%M}" if moment.year == today.year else f"{moment:%Y-%m-%d}"


def show_local(instant: int) -> str:
    """A time for a page about one thing: local, with its offset and age."""
    text = local_time(instant).isoformat(" ", "seconds")
    return f"{text[:-6]} {text[-6:]} ({describe_age(instant, current_us())})"


def short_run(uuid: str) -> str:
    """A run's uuid cut after its millisecond: enough to tell runs apart, and accepted back."""
    return uuid[:13]


def short(identifier: str) -> str:
    """The first 8 characters of a uuid or 12 of a sha256; both are accepted back."""
    return identifier[:8] if "-" in identifier else identifier[:12]


def show_axes(axes: Mapping[str, Any]) -> str:
    """`M=37 K=64`."""
    return " ".join(f"{name}={size}" for name, size in axes.items()) or "-"


def show_shape(shape: list[int] | str) -> str:
    """`[2, 8, 64]`, from a list or its JSON text."""
    return str(json.loads(shape) if isinstance(shape, str) else shape)


def show_ms(milliseconds: float) -> str:
    """A measured time with four digits, or whole milliseconds from 1 s on."""
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:#.4g}"


def show_module(place: Mapping[str, Any]) -> str:
    """Which module: `blocks.0.attn.to_q`; where none is known, the operation and the variant."""
    variant = place.get("variant") or ""
    return place["module_path"] or f"{place['operation'] or ''} {variant}".strip()


def show_place(place: Mapping[str, Any]) -> str:
    """Where in a model, in one phrase: `blocks.0.attn.to_q step 4 rank 1`."""
    steps = [f"{name} {place[name]}" for name in ("step", "rank") if place[name] is not None]
    return " ".join([show_module(place), *steps]).strip()


def show_error(value: float) -> str:
    """An error's size: `2.5e-01`, `0`."""
    return f"{value:.1e}" if value else "0"
