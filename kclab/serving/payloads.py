"""The HTTP request of a case."""

from __future__ import annotations

from typing import Any

from kclab.serving.cases import Case, Kind

ENDPOINTS = {
    Kind.IMAGE: "/v1/images/generations",
    Kind.EDIT: "/v1/images/edits",
    Kind.COMPLETION: "/v1/completions",
    Kind.CHAT: "/v1/chat/completions",
}


def payload_of(case: Case, model: str, inference_steps: int | None) -> dict[str, Any]:
    """The body of the request; `model` is the name that the server knows it by."""
    if case.kind in (Kind.IMAGE, Kind.EDIT):
        return {**_image(case, model, inference_steps), **case.payload}
    prompt: dict[str, Any] = {"prompt": case.prompt}
    if case.kind is Kind.CHAT:
        prompt = {"messages": [{"role": "user", "content": case.prompt}]}
    sampling = {"max_tokens": case.max_tokens, "temperature": 0, "seed": case.seed}
    return {"model": model, **prompt, "n": case.outputs, **sampling, **case.payload}


def _image(case: Case, model: str, inference_steps: int | None) -> dict[str, Any]:
    steps = {} if inference_steps is None else {"num_inference_steps": inference_steps}
    return {
        "model": model,
        "prompt": case.prompt,
        "size": case.size,
        "n": case.outputs,
        **steps,
        "guidance_scale": 1.0,
        "seed": case.seed,
        "response_format": "b64_json",
        "output_format": "png",
    }
