"""SGLang's command line and environment for a capture: eager, without warm-up, on the loopback."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kclab.capture.program import bootstrap_environment
from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.serving.model import Model, Runtime
from kclab.serving.options import ServeOptions
from kclab.serving.ports import Port, server_ports

HOST = "127.0.0.1"
OMP_THREADS = 8

OURS = ("--model-path", "--host", "--port", "--scheduler-port", "--master-port", "--model-id")
"""Options of the engine that kclab gives itself."""
COMPILING = (
    "--enable-torch-compile",
    "--enable-breakable-cuda-graph",
    "--cuda-graph-backend-decode",
    "--cuda-graph-backend-prefill",
    "--cuda-graph-config",
)
"""Options that would hide operators from capture."""
OFF = ("false", "disabled", "0")


def find_sglang(named: str | None) -> str:
    """The `sglang` program: as named, on PATH, or beside the Python that runs kclab.

    Raises EnvironmentLacking.
    """
    beside = Path(sys.executable).with_name("sglang")
    found = shutil.which(named or "sglang") or (
        str(beside) if named is None and os.access(beside, os.X_OK) else None
    )
    if found is None:
        raise EnvironmentLacking(
            f"{named or 'sglang'}: no such program; pip install 'kclab[sglang]' in an environment "
            "of its own, or say where it is with --sglang."
        )
    return found


def ports_of(model: Model, port: int) -> tuple[Port, ...]:
    """The ports that the server will take; the LLM runtime chooses its others itself."""
    ports = server_ports(port)
    return ports if model.runtime is Runtime.DIFFUSION else ports[:1]


def server_command(model: Model, options: ServeOptions, outputs: Path) -> list[str]:
    """The whole command line; `outputs` is where the server may leave files of its own."""
    require_eager(options.engine_arguments)
    common = [
        find_sglang(options.executable),
        *("serve", "--model-path", str(model.path)),
    ]
    specific = _diffusion if model.runtime is Runtime.DIFFUSION else _llm
    return [*common, *specific(model, options, outputs), *options.engine_arguments]


def _diffusion(model: Model, options: ServeOptions, outputs: Path) -> list[str]:
    port = options.port
    return [
        *("--model-id", options.model_id or model.served_name),
        *("--host", HOST, "--port", str(port)),
        *("--scheduler-port", str(port + 20), "--master-port", str(port + 21)),
        *("--performance-mode", "speed", "--attention-backend", "torch_sdpa"),
        *("--enable-torch-compile", "false", "--enable-breakable-cuda-graph", "false"),
        *("--warmup-mode", "off"),
        *("--output-path", str(outputs / "images"), "--input-save-path", str(outputs / "inputs")),
    ]


def _llm(model: Model, options: ServeOptions, outputs: Path) -> list[str]:
    return [
        *("--served-model-name", options.model_id or model.served_name),
        *("--host", HOST, "--port", str(options.port)),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
        "--skip-server-warmup",
    ]


def require_eager(arguments: Sequence[str]) -> None:
    """Raise BadUsage for engine options that kclab sets itself, or that hide operators."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in OURS:
            raise BadUsage(f"{name} among the engine's options: kclab sets it; use its own option.")
        if name in COMPILING:
            following = arguments[position + 1 : position + 2]
            value = value if equals else (following[0] if following else "")
            if value.lower() not in OFF:
                raise BadUsage(
                    f"{argument} among the engine's options: compiled code and CUDA graphs hide "
                    "operators from capture, so kclab runs the engine without."
                )


def engine_environment(plan: Path, omp_threads: int | None) -> dict[str, str]:
    """This environment with the plan and capture's bootstrap in it; no byte code is written."""
    threads = omp_threads or os.environ.get("OMP_NUM_THREADS") or OMP_THREADS
    return {
        **bootstrap_environment(plan),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The log's last lines are what explains a death.
        "PYTHONUNBUFFERED": "1",
    }
