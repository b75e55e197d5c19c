"""What to ask a server: kclab's own cases, and yours out of a TOML file.

[[case]]
name = "teapot"
kind = "image"                # image, edit, video, completion or chat
prompt = "A teapot."
size = "1024x1024"            # image, edit, video
seconds = 4                   # video
reference = "photo.png"       # edit: a file beside the TOML, or the name of an earlier case
outputs = 2
seed = 42
max_tokens = 8                # completion, chat
payload = { quality = "high" } # anything else that the request should say
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from kclab.core.errors import BadUsage
from kclab.serving.model import Medium, Runtime


class Kind(StrEnum):
    """Which endpoint a case asks."""

    IMAGE = "image"
    EDIT = "edit"
    VIDEO = "video"
    COMPLETION = "completion"
    CHAT = "chat"


RUNTIMES = {
    Kind.IMAGE: Runtime.DIFFUSION,
    Kind.EDIT: Runtime.DIFFUSION,
    Kind.VIDEO: Runtime.DIFFUSION,
    Kind.COMPLETION: Runtime.LLM,
    Kind.CHAT: Runtime.LLM,
}
MEDIA = {
    Kind.IMAGE: Medium.IMAGE,
    Kind.EDIT: Medium.IMAGE,
    Kind.VIDEO: Medium.VIDEO,
    Kind.COMPLETION: Medium.TEXT,
    Kind.CHAT: Medium.TEXT,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One request that a capture sends."""

    name: str
    kind: Kind
    prompt: str
    size: str = "1024x1024"
    """Width x height, pixels."""
    seconds: int = 4
    """Length of a video."""
    reference: str | None = None
    """The image that an edit starts from: a file, or the name of an earlier image case."""
    outputs: int = 1
    """How many images, videos or completions to ask for."""
    seed: int = 42
    max_tokens: int = 8
    payload: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the request."""
    own: bool = False
    """Whether it is one of kclab's own cases."""

    @property
    def request_id(self) -> str:
        """What receipts call the request."""
        is_image = MEDIA[self.kind] is Medium.IMAGE
        stem = f"qwen_image21_{self.name}" if self.own and is_image else self.name
        return stem if self.outputs == 1 else f"{stem}_batch{self.outputs}"


OWN_CASES = (
    Case(
        "square",
        Kind.IMAGE,
        "A red ceramic teapot stands on a wooden kitchen table next to a window in the gentle "
        "light of late afternoon.",
        own=True,
    ),
    Case(
        "landscape",
        Kind.IMAGE,
        "Wide landscape photograph of a small village by a calm lake at dawn: the houses mirror "
        "in the water, mountains rise in the background.",
        size="1536x1024",
        own=True,
    ),
    Case(
        "edit",
        Kind.EDIT,
        "Make the teapot cobalt blue. Keep the composition and the light as they are.",
        reference="square",
        own=True,
    ),
    Case(
        "alpha",
        Kind.IMAGE,
        "One ginger cat, sitting, shown whole, cut out on a transparent background with alpha "
        "channel, without floor and without shadow.",
        own=True,
    ),
    Case(
        "clip",
        Kind.VIDEO,
        "A small wooden boat leaves a quiet harbour at sunrise; gulls cry and water laps.",
        size="960x544",
        own=True,
    ),
    Case(
        "completion",
        Kind.COMPLETION,
        "The three laws of thermodynamics, in plain words:",
        own=True,
    ),
    Case(
        "chat",
        Kind.CHAT,
        "Explain in two sentences why the sky is blue.",
        own=True,
    ),
)
"""In the order in which they are sent: `edit` needs the square's image."""


def own_cases(medium: Medium) -> list[Case]:
    """kclab's own cases for models that make this."""
    return [case for case in OWN_CASES if MEDIA[case.kind] is medium]


def choose_cases(
    medium: Medium,
    names: Sequence[str],
    file: Path | None,
    outputs: int,
    reference: Path | None,
) -> list[Case]:
    """The cases to send, in order; every one of them makes sense for the model's runtime.

    Without names: the file's, or else all of kclab's own for what the model makes. `outputs`
    applies to kclab's own; `reference` replaces what edits start from. Raises BadUsage.
    """
    own = [replace(case, outputs=outputs) for case in own_cases(medium)]
    read = read_cases(file) if file is not None else []
    known = {case.name: case for case in [*own, *read]}
    chosen = [known[name] for name in known if name in names]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadUsage(f"no case {unknown[0]!r} for this model; there are {', '.join(known)}.")
    chosen = chosen or read or own
    runtime = RUNTIMES[own[0].kind]
    for case in chosen:
        # A pipeline that kclab does not know may make either, images or videos.
        if RUNTIMES[case.kind] is not runtime:
            raise BadUsage(
                f"case {case.name}: {case.kind} is not for a {runtime} model; "
                f"its cases are {', '.join(case.name for case in own)}."
            )
    return _with_references(chosen, reference)


def _with_references(chosen: Sequence[Case], reference: Path | None) -> list[Case]:
    """Edits with the image that they start from, each there before it is needed."""
    if reference is not None and not reference.is_file():
        raise BadUsage(f"--reference-image {reference}: no such file.")
    done: set[str] = set()
    cases = []
    for case in chosen:
        if case.kind is Kind.EDIT and reference is not None:
            case = replace(case, reference=str(reference))
        elif case.kind is Kind.EDIT and case.reference not in done:
            _require_reference(case)
        done.add(case.name)
        cases.append(case)
    return cases


def _require_reference(case: Case) -> None:
    if case.reference is None or not Path(case.reference).is_file():
        raise BadUsage(
            f"case {case.name} needs an image to start from: ask for --case "
            f"{case.reference or 'square'} as well, or give --reference-image FILE."
        )


def read_cases(file: Path) -> list[Case]:
    """The cases of a TOML file; raises BadUsage naming the file, the case and what is wrong."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("case", [])
    except OSError as error:
        raise BadUsage(f"--cases {file}: {error.strerror}.") from error
    except ValueError as error:
        raise BadUsage(f"--cases {file}: {error}.") from error
    if not isinstance(tables, list) or not tables:
        raise BadUsage(f"--cases {file}: no [[case]] in it.")
    cases = [_read_case(file, number, table) for number, table in enumerate(tables, 1)]
    names = [case.name for case in cases]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadUsage(f"--cases {file}: two cases are called {twice!r}.")
    return cases


_SIZE = re.compile(r"[1-9]\d*x[1-9]\d*")
_TYPES: Mapping[str, type] = {
    **{name: str for name in ("name", "kind", "prompt", "size", "reference")},
    **{name: int for name in ("outputs", "seconds", "seed", "max_tokens")},
    "payload": dict,
}


def _read_case(file: Path, number: int, table: Mapping[str, Any]) -> Case:
    where = f"--cases {file}, case {table.get('name', number)!s}"
    for key, value in table.items():
        if key not in _TYPES:
            raise BadUsage(f"{where}: no key {key!r}; there are {', '.join(_TYPES)}.")
        if not isinstance(value, _TYPES[key]) or isinstance(value, bool):
            raise BadUsage(f"{where}: {key} is {value!r}; expected {_TYPES[key].__name__}.")
    required = [f.name for f in fields(Case) if f.name in ("name", "kind", "prompt")]
    if missing := [name for name in required if not table.get(name)]:
        raise BadUsage(f"{where}: {missing[0]} is missing.")
    if table["kind"] not in list(Kind):
        raise BadUsage(f"{where}: kind {table['kind']!r}; expected {', '.join(Kind)}.")
    if any(table.get(key, 1) < 1 for key in ("outputs", "seconds", "max_tokens")):
        raise BadUsage(f"{where}: outputs, seconds and max_tokens are at least 1.")
    if not _SIZE.fullmatch(table.get("size", "1x1")):
        raise BadUsage(f"{where}: size {table['size']!r}; write width x height, as 1024x1024.")
    values = {**table, "kind": Kind(table["kind"])}
    beside = file.parent / str(table.get("reference"))
    if beside.is_file():
        values["reference"] = str(beside)
    return Case(**values)
