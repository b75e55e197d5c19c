"""What a model folder says about itself: runtime, name, revision, sampling schedule, root class."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kclab.core.errors import BadUsage

HUB = "https://huggingface.co/"

_REVISION = re.compile(r"[0-9a-f]{40}")


class Runtime(StrEnum):
    """Which of SGLang's two runtimes serves a model."""

    DIFFUSION = "diffusion"
    LLM = "llm"


class Medium(StrEnum):
    """What a model makes."""

    IMAGE = "image"
    VIDEO = "video"
    TEXT = "text"


VIDEO_PIPELINES = ("LTX2", "MiniMaxH3")
"""How the architectures begin that make videos."""
H3_PART = "FL2VA"
"""MiniMax-H3's release is two models side by side; SGLang serves this one unless it is told."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as its folder describes it; None where it does not say."""

    path: Path
    runtime: Runtime
    architecture: str | None
    """`QwenImage21Pipeline`, `Qwen3NextForCausalLM`."""
    name: str
    """`Qwen/Qwen-Image-2.1` where the folder came from the hub, else the folder's name."""
    revision: str | None
    """The hub's commit."""
    source: str
    sigmas: tuple[float, ...] | None
    """The checkpoint's own sampling schedule, one number a step."""
    root: str | None
    """The class whose calls are the steps."""
    registered: str | None = None
    """What SGLang calls the release; where nothing tells, it guesses from the folder's name."""

    @property
    def medium(self) -> Medium:
        """What it makes; a pipeline that is not known is taken for one of images."""
        if self.runtime is Runtime.LLM:
            return Medium.TEXT
        is_video = (self.architecture or "").startswith(VIDEO_PIPELINES)
        return Medium.VIDEO if is_video else Medium.IMAGE

    @property
    def served_name(self) -> str:
        """What requests call it: SGLang knows pipelines by the part after the organisation."""
        return self.registered or self.name.rpartition("/")[2]


def read_model(path: Path) -> Model:
    """Read a model folder's own files; raises BadUsage where it is none."""
    if not path.is_dir():
        raise BadUsage(f"--model-path {path}: no such folder.")
    name, revision = _origin(path)
    folder = _served_part(path)
    index, config = folder / "model_index.json", folder / "config.json"
    common: dict[str, Any] = {
        "path": folder.resolve(),
        "name": name,
        "revision": revision,
        "source": f"{HUB}{name}" if revision else str(path.resolve()),
    }
    if index.is_file():
        return Model(runtime=Runtime.DIFFUSION, **common, **_pipeline(index))
    if config.is_file():
        return Model(runtime=Runtime.LLM, **common, **_language_model(config))
    raise BadUsage(f"--model-path {path}: neither model_index.json nor config.json is in it.")


def _served_part(path: Path) -> Path:
    part = path / H3_PART
    is_release = (part / "model_index.json").is_file()
    return part if is_release and not (path / "model_index.json").is_file() else path


def _pipeline(index: Path) -> dict[str, Any]:
    facts = _json(index)
    return {
        "architecture": facts.get("_class_name"),
        "sigmas": _sigmas(index, facts.get("sample_sigmas")),
        "root": _class_of(facts, "transformer"),
        "registered": _registered(facts),
    }


def _class_of(facts: dict[str, Any], component: str) -> str | None:
    """The class of a pipeline's part, which its index names after the library."""
    named = facts.get(component)
    return str(named[1]) if isinstance(named, list) and len(named) == 2 and named[1] else None


def _registered(facts: dict[str, Any]) -> str | None:
    architecture = facts.get("_class_name")
    if architecture in (None, "QwenImage21Pipeline"):
        return "Qwen-Image-2.1"
    if architecture == "MiniMaxH3Pipeline":
        return "MiniMax-H3"
    # LTX-2.5 has the pipeline class of LTX-2; its text encoder tells them apart.
    is_gemma4 = (_class_of(facts, "text_encoder") or "").startswith("Gemma4")
    return "LTX-2.5-Diffusers" if str(architecture).startswith("LTX2") and is_gemma4 else None


def _language_model(config: Path) -> dict[str, Any]:
    architectures = _json(config).get("architectures") or [None]
    return {"architecture": architectures[0], "sigmas": None, "root": architectures[0]}


def _sigmas(index: Path, values: Any) -> tuple[float, ...] | None:
    if values is None:
        return None
    if not isinstance(values, list) or not values or not all(_is_number(v) for v in values):
        raise BadUsage(f"{index}: sample_sigmas is not a list of numbers.")
    return tuple(float(value) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadUsage(f"{path}: cannot be read as JSON ({error}).") from error
    if not isinstance(facts, dict):
        raise BadUsage(f"{path}: a JSON object was expected.")
    return facts


def _origin(path: Path) -> tuple[str, str | None]:
    """(name, revision) as the hub's cache, or `hf download --local-dir`, laid the folder out."""
    path = path.absolute()
    for folder in (path, path.parent):  # the whole of a release, or a part of it
        cached = folder.parent.parent.name
        if folder.parent.name == "snapshots" and cached.startswith("models--"):
            return cached.removeprefix("models--").replace("--", "/", 1), folder.name
    for noted in sorted((path / ".cache/huggingface/download").glob("*.metadata")):
        first = noted.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
        if _REVISION.fullmatch(first):
            return path.name, first
    return path.name, None
