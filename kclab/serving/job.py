"""Everything that a serving capture decides before it starts anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kclab.capture.options import CaptureOptions, check_options
from kclab.core.environment import package_version
from kclab.core.errors import BadUsage
from kclab.serving.cases import Case, choose_cases
from kclab.serving.model import Model, Runtime, read_model
from kclab.serving.options import ENGINES, ServeOptions

# The first, a middle and the last step of the eight of Qwen-Image-2.1's own schedule.
STEPS_OF_ONE = (0, 4, 7)
STEPS_OF_SEVERAL = (0, 7)
ALL_STEPS_MAX_PER_AXES = 4
ADAPTERS = {
    "QwenImage21Pipeline": ("qwen-image",),
    "LTX2Pipeline": ("ltx",),
    "LTX2TwoStagePipeline": ("ltx",),
    "LTX2TwoStageHQPipeline": ("ltx",),
    "MiniMaxH3Pipeline": ("minimax-h3",),
    "Qwen3NextForCausalLM": ("qwen-next",),
    **{f"DeepseekV{version}ForCausalLM": ("deepseek",) for version in ("2", "3", "32", "4", "41")},
}
"""Architecture -> the adapters that know it; `torch` knows what any model runs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request for a capture."""

    options: ServeOptions
    model: Model
    cases: tuple[Case, ...]
    capture: CaptureOptions
    """With adapters, root and steps decided."""
    inference_steps: int | None

    @property
    def served_name(self) -> str:
        """What requests call the model."""
        return self.options.model_id or self.model.served_name

    @property
    def params(self) -> dict[str, Any]:
        """What the run's row keeps."""
        return {**asdict(self.options), "cases": [case.name for case in self.cases]}


def prepare(options: ServeOptions) -> Job:
    """Read the model's folder and decide; raises BadUsage before anything is started."""
    if options.engine not in ENGINES:
        raise BadUsage(f"--engine {options.engine}: there is {', '.join(ENGINES)}.")
    if options.attach is not None and options.attach_folder is None:
        raise BadUsage(
            "--attach needs the folder that the server was started with: set KCLAB_ATTACH to one "
            "for both, or give --attach-folder."
        )
    model = read_model(options.model_path)
    cases = choose_cases(
        model.medium,
        options.cases,
        options.case_file,
        options.outputs,
        options.reference_image,
    )
    steps = options.inference_steps
    if steps is None and model.sigmas is not None:
        steps = len(model.sigmas)
    job = Job(options, model, tuple(cases), _capture(options, model, cases, steps), steps)
    check_options(job.capture)
    return job


def _capture(
    options: ServeOptions, model: Model, cases: Sequence[Case], inference_steps: int | None
) -> CaptureOptions:
    capture = options.capture
    adapters = capture.adapters or ADAPTERS.get(model.architecture or "", ("torch",))
    root = capture.root or (model.root if adapters == ("torch",) else None)
    steps = capture.steps
    if steps is None and model.runtime is Runtime.DIFFUSION:
        steps = default_steps(cases, inference_steps)
    limit = options.max_per_axes
    if limit is None and steps is None:
        limit = ALL_STEPS_MAX_PER_AXES
    return replace(capture, adapters=adapters, root=root, steps=steps, max_per_axes=limit or None)


def default_steps(cases: Sequence[Case], inference_steps: int | None) -> tuple[int, ...]:
    """The steps to capture of image requests: fewer where a request asks for several images.

    Steps beyond the schedule are left out.
    """
    wanted = STEPS_OF_ONE if any(case.outputs == 1 for case in cases) else STEPS_OF_SEVERAL
    return tuple(s for s in wanted if inference_steps is None or s < inference_steps)


def provenance(job: Job, command: Sequence[str]) -> dict[str, Any]:
    """What each receipt says about the model and the server."""
    options, model = job.options, job.model
    attached = options.attach is not None
    facts = {
        "model": options.model or model.name,
        "model_revision": options.revision or model.revision,
        "source": options.source or model.source,
        "engine": "SGLang",
        "engine_version": package_version("sglang"),
        "server_command": list(command),
        "sampling_sigmas": None if model.sigmas is None else list(model.sigmas),
        "sampling_adapter": _sampling_note(job),
        # kclab starts engines without; what somebody else started, its command line tells.
        "torch_compile": None if attached else False,
        "cuda_graphs": None if attached else False,
    }
    given = dict(options.capture.provenance)
    return {**{key: value for key, value in facts.items() if value is not None}, **given}


def _sampling_note(job: Job) -> str | None:
    if job.model.sigmas is None:
        return None
    if job.inference_steps == len(job.model.sigmas):
        return "The checkpoint's own schedule, sample_sigmas of model_index.json, unchanged."
    return f"{job.inference_steps} steps; the engine makes the schedule."
