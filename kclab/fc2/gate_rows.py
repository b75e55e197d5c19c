"""A gate's outcome as rows: what was compared, how long both ways took, and for which key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kclab.core.stats import Comparison, Sample, median, quantile
from kclab.core.times import now_us
from kclab.db.connection import writing
from kclab.fc2.bench import BASELINE_ARM, CANDIDATE_ARM
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.gpu import GLANCE
from kclab.fc2.lab import Session
from kclab.fc2.parity import Parity
from kclab.fc2.rows import add_samples, config_id, finite, insert, validity_id

BLOCK, TRAJECTORY = "block", "trajectory"


@dataclass(frozen=True, slots=True)
class GateTiming:
    """Both ways timed side by side."""

    comparison: Comparison
    """A over B: above 1 the candidate is faster."""
    samples: Sequence[Sample]
    glances: Sequence[Sequence[int | None]] = ()
    """`kclab.fc2.gpu.GLANCE` of each round."""

    def milliseconds(self, arm: str) -> list[float]:
        """One arm's samples, in order."""
        return [sample.ms for sample in self.samples if sample.arm == arm]

    def summary(self, arm: str) -> dict[str, float]:
        """p50, p95 and mean, milliseconds."""
        values = self.milliseconds(arm)
        return {
            "p50_ms": median(values),
            "p95_ms": quantile(values, 0.95),
            "mean_ms": sum(values) / len(values),
        }


def add_gate(
    session: Session,
    kind: str,
    boundary_id: int | None,
    config: AlgorithmConfig,
    parities: Mapping[str, Parity],
    detail: Mapping[str, Any],
    timing: GateTiming | None = None,
) -> int:
    """One `fc2_gate` row, its timing beside it; passed where every comparison is exact."""
    passed = all(parity.exact for parity in parities.values())
    told = {**detail, **{name: asdict(parity) for name, parity in parities.items()}}
    with writing(session.active.connection) as tx:
        if timing is not None:
            told["timing"] = {
                "order": "ABBA, shuffled by round",
                "baseline": timing.summary(BASELINE_ARM),
                "candidate": timing.summary(CANDIDATE_ARM),
                "measurement": _measurement(session, config, told, timing),
            }
        values = {
            "run_id": session.active.id,
            "boundary_id": boundary_id,
            "config_id": config_id(tx, config),
            "validity_id": validity_id(tx, session.validity),
            "kind": kind,
            "status": "passed" if passed else "failed",
            "detail": json.dumps(told),
            "at_us": now_us(),
        }
        return insert(tx, "fc2_gate", values)


def _measurement(
    session: Session, config: AlgorithmConfig, told: Mapping[str, Any], timing: GateTiming
) -> int:
    ratio = timing.comparison.ratio
    connection = session.active.connection
    values = {
        "run_id": session.active.id,
        "name": f"fc2 block {told['block']} {config.text}",
        "baseline_ms": median(timing.milliseconds(BASELINE_ARM)),
        "candidate_ms": median(timing.milliseconds(CANDIDATE_ARM)),
        "ratio": ratio.estimate,
        "ratio_low": finite(ratio.low),
        "ratio_high": finite(ratio.high),
        "pairs": timing.comparison.pairs,
        "verdict": str(timing.comparison.verdict),
        "detail": _conditions(timing),
    }
    measurement = insert(connection, "measurement", values)
    add_samples(connection, measurement, timing.samples)
    return measurement


def _conditions(timing: GateTiming) -> str | None:
    if not timing.glances:
        return None
    return json.dumps({"conditions": {"fields": GLANCE, "rounds": timing.glances}})


def tell_difference(parities: Mapping[str, Parity]) -> str | None:
    """`candidate_vs_baseline: 12 of 7872 elements differ` of the first that is not exact."""
    for name, parity in parities.items():
        if not parity.exact:
            return f"{name}: {parity.different} of {parity.elements} elements differ"
    return None
