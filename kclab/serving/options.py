"""What a serving capture is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kclab.capture.options import CaptureOptions

ENGINES = ("sglang",)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """One `kclab capture serve`."""

    model_path: Path
    engine: str = "sglang"
    cases: tuple[str, ...] = ()
    """Names; empty: all of the file's, or all of kclab's own for the model's runtime."""
    case_file: Path | None = None
    outputs: int = 1
    """Images (or completions) that each of kclab's own cases asks for."""
    reference_image: Path | None = None
    """What edits start from, instead of the square's image."""
    model: str | None = None
    """Name in the receipts; else what the folder says."""
    model_id: str | None = None
    """What the server, and so each request, calls the model."""
    revision: str | None = None
    source: str | None = None
    inference_steps: int | None = None
    """Sampling steps; else as many as the checkpoint's own schedule has."""
    port: int = 30_000
    attach: str | None = None
    """URL of a server that somebody else started with the plugin."""
    attach_folder: Path | None = None
    """The KCLAB_ATTACH folder of that server."""
    executable: str | None = None
    """The `sglang` program; else the one on PATH, or beside this Python."""
    engine_arguments: tuple[str, ...] = ()
    """More of the engine's own options, added to its command line."""
    omp_threads: int | None = None
    """OMP_NUM_THREADS of the engine; else the environment's own, or 8."""
    start_seconds: float = 1200.0
    request_seconds: float = 1800.0
    grace_seconds: float = 30.0
    replay: bool = True
    device: str = "auto"
    """Where to replay."""
    max_per_axes: int | None = None
    """Captures per definition and axes, 0 for no limit; None: 4 where all steps are captured,
    else no limit, since the steps are one."""
    capture: CaptureOptions = field(default_factory=lambda: CaptureOptions(adapters=()))
    """No adapters: those for the model. No steps: those for the cases. Its own `max_per_axes` does
    not count."""
