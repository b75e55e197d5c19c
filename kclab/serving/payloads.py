"""The HTTP request of a case."""

from __future__ import annotations

import math
from typing import Any

from kclab.serving.cases import Case, Kind

ENDPOINTS = {
    Kind.IMAGE: "/v1/images/generations",
    Kind.EDIT: "/v1/images/edits",
    Kind.VIDEO: "/v1/videos",
    Kind.COMPLETION: "/v1/completions",
    Kind.CHAT: "/v1/chat/completions",
}


# SGLang 0.5.23: multimodal_gen/.../minimax_h3/{request_validation,task_profiles}.py.
H3 = "MiniMaxH3Pipeline"
H3_RATIOS = ((21, 9), (16, 9), (4, 3), (1, 1), (3, 4), (9, 16))
"""The shapes of picture that MiniMax-H3 makes."""
H3_SHORT_EDGE = 768
"""Pixels; what it was made for."""


def payload_of(
    case: Case, model: str, inference_steps: int | None, architecture: str | None = None
) -> dict[str, Any]:
    """The body of the request; `model` is the name that the server knows it by."""
    if case.kind is Kind.VIDEO:
        return {**_video(case, model, inference_steps, architecture), **case.payload}
    if case.kind in (Kind.IMAGE, Kind.EDIT):
        return {**_image(case, model, inference_steps), **case.payload}
    prompt: dict[str, Any] = {"prompt": case.prompt}
    if case.kind is Kind.CHAT:
        prompt = {"messages": [{"role": "user", "content": case.prompt}]}
    sampling = {"max_tokens": case.max_tokens, "temperature": 0, "seed": case.seed}
    return {"model": model, **prompt, "n": case.outputs, **sampling, **case.payload}


def _image(case: Case, model: str, inference_steps: int | None) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": case.prompt,
        "size": case.size,
        "n": case.outputs,
        **_steps(inference_steps),
        "guidance_scale": 1.0,
        "seed": case.seed,
        "response_format": "b64_json",
        "output_format": "png",
    }


def _steps(inference_steps: int | None) -> dict[str, Any]:
    return {} if inference_steps is None else {"num_inference_steps": inference_steps}


def _video(
    case: Case, model: str, inference_steps: int | None, architecture: str | None
) -> dict[str, Any]:
    """Guidance stays the checkpoint's own: distilled ones refuse to be told any."""
    shape = {"size": case.size, "seconds": case.seconds}
    if architecture == H3:
        shape = {"task": "t2va", "conditions": [], "target": _h3_target(case)}
    return {
        "model": model,
        "prompt": case.prompt,
        "n": case.outputs,
        **shape,
        **_steps(inference_steps),
        "seed": case.seed,
    }


def _h3_target(case: Case) -> dict[str, Any]:
    """A size in MiniMax-H3's words: the short edge, and the nearest of its shapes."""
    width, height = (int(part) for part in case.size.split("x"))
    ratio = min(H3_RATIOS, key=lambda r: abs(math.log(r[0] / r[1] * height / width)))
    return {
        "short_edge": H3_SHORT_EDGE if case.own else min(width, height),
        "aspect_ratio": f"{ratio[0]}:{ratio[1]}",
        "duration_seconds": case.seconds,
    }
