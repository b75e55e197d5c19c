"""One workload: load it, run its reference, compare every output. Runs inside a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kclab.core.definition import Definition
from kclab.core.errors import BlobAbsent, KclabError
from kclab.core.memory import is_out_of_memory
from kclab.core.times import now_us
from kclab.core.tolerance import OutputTolerance, tolerance_for
from kclab.db.verdicts import OracleVerdict, OutputVerdict
from kclab.replay.compare import PROVES_LITTLE, compare_output, unlike
from kclab.replay.loading import TensorLoader
from kclab.replay.references import Reference, ReferenceBroken, WrongOutputs
from kclab.replay.task import Outcome, StoredTensor, Task


class Judge:
    """Judges workloads one after the other on one device; references are compiled once."""

    def __init__(self, definitions: Path, device: str) -> None:
        self.definitions = definitions
        """Folder of definition bodies, `<sha256>.json`."""
        self.device = device
        self.loader = TensorLoader(device)
        self._references: dict[str, Reference | ReferenceBroken] = {}
        self._tolerances: dict[str, dict[str, OutputTolerance]] = {}

    def judge(self, task: Task) -> Outcome:
        """The verdict on a workload; only a broken process or device raises."""
        started_us, began = now_us(), time.monotonic()
        verdict = self._verdict(task)
        return Outcome(
            id=task.id,
            seconds=time.monotonic() - began,
            started_us=started_us,
            device=self.device,
            **verdict,
        )

    def _verdict(self, task: Task) -> dict[str, Any]:
        try:
            return self._compare(task)
        except WrongOutputs as error:
            return {"status": "failed", "reason": str(error)}
        except ReferenceBroken as error:
            return _error(str(error), trace=error.trace, lacking=error.memory)
        except KclabError as error:
            return _error(str(error), lacking=isinstance(error, BlobAbsent))
        except (MemoryError, RuntimeError) as error:
            # RuntimeError is how torch says that a copy to the device or a comparison failed.
            memory = is_out_of_memory(error)
            what = "out of memory" if memory else type(error).__name__
            return _error(f"{what}: {str(error).partition(chr(10))[0][:300]}", lacking=memory)

    def _compare(self, task: Task) -> dict[str, Any]:
        reference = self._reference(task.definition)
        definition = reference.definition
        inputs = self._inputs(definition, task.inputs)
        settle(self.device)
        returned = reference(inputs)
        del inputs
        tolerances = self._tolerance(definition)
        verdicts = [
            self._output(name, returned[name], task.outputs.get(name), tolerance)
            for name, tolerance in tolerances.items()
        ]
        oracle = self._oracle(task, reference, returned) if task.oracle else ()
        return {**_summary(verdicts), "outputs": verdicts, "oracle": oracle}

    def _reference(self, sha256: str) -> Reference:
        if sha256 not in self._references:
            path = self.definitions / f"{sha256}.json"
            definition = Definition.from_foreign(json.loads(path.read_bytes()), "definition")
            try:
                self._references[sha256] = Reference(definition)
            except ReferenceBroken as error:
                self._references[sha256] = error
        found = self._references[sha256]
        if isinstance(found, ReferenceBroken):
            raise found
        return found

    def _tolerance(self, definition: Definition) -> dict[str, OutputTolerance]:
        if definition.sha256 not in self._tolerances:
            self._tolerances[definition.sha256] = {
                name: tolerance_for(definition, name) for name in definition.outputs
            }
        return self._tolerances[definition.sha256]

    def _inputs(
        self, definition: Definition, sources: Mapping[str, StoredTensor | int | float | bool]
    ) -> dict[str, Any]:
        """Values in call order; an optional input that was not given is None."""
        values = {
            name: self.loader.load(source) if isinstance(source, StoredTensor) else source
            for name, source in sources.items()
        }
        if set(values) == set(definition.inputs):
            definition.check_inputs({name: _facts(value) for name, value in values.items()})
        return {name: values.get(name) for name in definition.inputs}

    def _output(
        self, name: str, reference: Tensor, stored: StoredTensor | None, tolerance: OutputTolerance
    ) -> OutputVerdict:
        if stored is None:
            return unlike(name, None, tolerance, "the engine's output was not captured")
        return compare_output(reference, self.loader.load(stored), tolerance, name)

    def _oracle(
        self, task: Task, reference: Reference, returned: Mapping[str, Tensor]
    ) -> Sequence[OracleVerdict]:
        from kclab.replay.oracle import who_is_wrong

        inputs = self._inputs(reference.definition, task.inputs)
        engine = {name: self.loader.load(stored) for name, stored in task.outputs.items()}
        tolerances = self._tolerance(reference.definition)
        return who_is_wrong(reference, inputs, engine, returned, tolerances)


def settle(device: str) -> None:
    """Undo what an earlier reference may have changed for the whole process; seed the generator."""
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    # Not torch.manual_seed: without a GPU it keeps a stack trace of every call for later.
    torch.default_generator.manual_seed(0)
    if device.startswith("cuda"):
        torch.cuda.manual_seed_all(0)


def _facts(value: Any) -> Any:
    return (str(value.dtype), tuple(value.shape)) if isinstance(value, Tensor) else value


def _error(reason: str, *, trace: str | None = None, lacking: bool = False) -> dict[str, Any]:
    return {"status": "error", "reason": reason, "traceback": trace, "lacking": lacking}


def _summary(verdicts: Sequence[OutputVerdict]) -> dict[str, Any]:
    failed = [f"{v.name}: {v.reason}" for v in verdicts if not v.passed]
    weak = [
        f"{v.name}: {v.metrics[PROVES_LITTLE]}"
        for v in verdicts
        if v.metrics and PROVES_LITTLE in v.metrics
    ]
    return {
        "status": "failed" if failed else "passed",
        "reason": "; ".join(failed) or None,
        "warning": "; ".join(weak) or None,
    }
