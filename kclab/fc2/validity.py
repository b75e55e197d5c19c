"""What a result holds for: the part of the environment that chooses and shapes kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.environment import package_version
from kclab.fc2.backends import Backend
from kclab.fc2.lt import ALIGNMENT

VARIABLES = ("CUBLAS", "NVIDIA_TF32")
"""Prefixes of environment variables that change what cuBLAS does."""

SWITCHES = ("H3_", "COMFY_KITCHEN_", "CUDA_", "TORCH_", "CUBLAS")
"""Beginnings of variables that a run keeps beside its environment: they may explain a result, and
most of them change none."""

NAMES = ("gpu", "capability", "driver", "cublaslt", "torch")
"""Facts with a column of their own."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The key that a stored result is found again by, the workload and its numerics aside."""

    backend: str
    facts: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        """Of the canonical JSON."""
        return text_sha256(self.text)

    @property
    def text(self) -> str:
        """Canonical JSON of everything."""
        return canonical_json({"backend": self.backend, **self.facts})

    def column(self, name: str) -> str | None:
        """One of NAMES, as text."""
        value = self.facts.get(name)
        return None if value is None else str(value)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """`driver: 580 here, 590 stored` for each fact that differs."""
        own = {"backend": self.backend, **self.facts}
        names = sorted({*own, *other})
        return [
            f"{name}: {own.get(name, 'unset')} here, {other.get(name, 'unset')} stored"
            for name in names
            if own.get(name) != other.get(name)
        ]


def current_validity(backend: Backend) -> Validity:
    """This process's key."""
    facts = {k: v for k, v in backend.facts().items() if k not in ("gpu_uuid", "cublas_header")}
    facts["torch"] = package_version("torch")
    facts["alignment"] = ALIGNMENT
    facts |= torch_switches()
    facts |= {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)}
    return Validity(backend.name, facts)


def torch_switches() -> dict[str, Any]:
    """torch's settings that change which kernels its own GEMMs take, and their bytes."""
    import torch

    matmul = torch.backends.cuda.matmul
    return {
        "bf16_reduced_precision_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
        "fp32_precision": torch.get_float32_matmul_precision(),
        "preferred_blas": str(torch.backends.cuda.preferred_blas_library()),
    }


def switches() -> dict[str, str]:
    """The environment variables of `SWITCHES`, by name."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(SWITCHES)}
