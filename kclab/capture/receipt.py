"""The receipt: everything that is known about one occurrence of a workload."""

from __future__ import annotations

import json
import math
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from kclab.core.digest import canonical_json


def plain_json(value: Any) -> Any:
    """`value` as JSON can hold it: foreign objects and non-finite numbers become text."""
    if isinstance(value, bool) or value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): plain_json(v) for k, v in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [plain_json(v) for v in value]
    return str(value)


def site_key(
    definition: str,
    *,
    module_path: str | None,
    operation: str,
    step: int,
    variant: str | None,
    axes: Mapping[str, int],
    rank: int | None,
) -> str:
    """Where in a program a capture was taken, comparable between runs, engines and releases."""
    return canonical_json(
        {
            "definition": definition,
            "module_path": module_path,
            "operation": operation,
            "step": step,
            "variant": variant,
            "axes": dict(axes),
            "rank": rank,
        }
    )


def tensor_descriptor(sha256: str) -> dict[str, Any]:
    """How a receipt names a blob: its path within the store."""
    path = f"blob/{sha256[:2]}/{sha256[2:]}.safetensors"
    return {"type": "safetensors", "path": path, "tensor_key": "tensor"}


def scalar_descriptor(value: float | bool) -> dict[str, Any]:
    """How a receipt names a Python scalar."""
    return {"type": "scalar", "value": value}


def capture_uuid(
    definition: str, inputs: Mapping[str, Mapping[str, Any]], provenance: Mapping[str, Any]
) -> str:
    """uuid5 over definition, input descriptors and provenance.

    `provenance` must name the occurrence, or two equal calls would be one capture.
    """
    identity = json.dumps([definition, inputs, provenance], sort_keys=True)
    return str(uuid.uuid5(uuid.NAMESPACE_URL, identity))


def process_rank() -> int | None:
    """This process's place among its equals, None when it has none.

    torch.distributed knows best, then the launcher's RANK or LOCAL_RANK, then the position among
    its parent's multiprocessing children.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for variable in ("RANK", "LOCAL_RANK"):
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable])
    process = sys.modules.get("multiprocessing.process")
    identity = () if process is None else process.current_process()._identity
    return int(identity[-1]) - 1 if identity else None
