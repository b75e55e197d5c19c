"""What decides a kernel besides its inputs: environment variables and torch's own switches."""

from __future__ import annotations

import os
from typing import Any

import torch

VARIABLES = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_JIT",
    "RANK",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_COMPILE_DISABLE",
    "TORCH_CUDNN_V8_API_DISABLED",
    "WORLD_SIZE",
)
"""The environment variables that a receipt may keep; any other could hold a secret."""


def allowed_variables() -> dict[str, str]:
    """The allowed environment variables that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def torch_switches() -> dict[str, Any]:
    """The flags of this process by which torch chooses precision, determinism and threads."""
    matmul = torch.backends.cuda.matmul
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }
