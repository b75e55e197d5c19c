"""Which config a mode measures: the one that was named, the stored best, or the seed's order."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from kclab.core.errors import BadUsage, NothingMatched
from kclab.db.queries.fc2 import best_configs
from kclab.fc2.backends import Candidate, Gemm, Refused
from kclab.fc2.config import AlgorithmConfig, config_from_json, parse_config

SPLITS = (1, 2, 4, 8, 16)
"""Explicit split-K counts that are checked, by default."""

MOST_CHECKS = 64

NO_SCHEME = "capability reports no public reduction scheme"


def named_candidate(gemm: Gemm, text: str, budgets: Sequence[int], wanted: int) -> Candidate:
    """The candidate that `--candidate` names.

    `enumerate:B:R` is the R-th answer within the B-th budget (from 0); else a JSON file, JSON text,
    or nine numbers joined by ':'. Raises BadUsage, or Refused with the library's reason.
    """
    if text.startswith("enumerate:"):
        return _enumerated(gemm, text, budgets, wanted)
    path = Path(text)
    if path.suffix == ".json" and not path.is_file():
        raise BadUsage(f"candidate {text}: there is no such file.")
    if not text.lstrip().startswith("{") and ":" not in text and path.is_file():
        config = config_from_json(json.loads(path.read_text(encoding="utf-8")))
    else:
        config = parse_config(text)
    return explicit_candidate(gemm, config)


def explicit_candidate(gemm: Gemm, config: AlgorithmConfig) -> Candidate:
    """A config as a candidate, whatever workspace it needs. Raises Refused."""
    check = gemm.check(config)
    if not check.valid or check.required_workspace is None:
        raise Refused(f"config {config.text} is refused: {check.reason}.")
    return Candidate(config, check.required_workspace, check.waves, "explicit")


def _enumerated(gemm: Gemm, text: str, budgets: Sequence[int], wanted: int) -> Candidate:
    parts = text.split(":")[1:]
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise BadUsage(f"candidate {text!r}: write enumerate:BUDGET_INDEX:RANK, as enumerate:4:0.")
    budget, rank = (int(part) for part in parts)
    if budget >= len(budgets):
        raise BadUsage(f"candidate {text!r}: there are {len(budgets)} budgets, numbered from 0.")
    found = gemm.enumerate(budgets[budget], wanted)
    if rank >= len(found):
        raise NothingMatched(
            f"candidate {text!r}: the heuristic gave {len(found)} algorithms within "
            f"{budgets[budget]} bytes."
        )
    return found[rank]


def stored_candidate(
    connection: sqlite3.Connection, gemm: Gemm, boundary_id: int, validity_sha256: str
) -> Candidate | None:
    """The stored best of this boundary under exactly this validity key, if it still passes."""
    rows = best_configs(
        connection,
        boundary_id=boundary_id,
        validity_sha256=validity_sha256,
        workspace=gemm.workspace_bytes,
    )
    for row in rows:
        try:
            return explicit_candidate(gemm, AlgorithmConfig(*row["config"]))
        except Refused:
            continue  # a config that the library no longer takes is no best
    return None


def explicit_checks(
    gemm: Gemm, bases: Sequence[Candidate], splits: Sequence[int], most: int
) -> list[Candidate | tuple[AlgorithmConfig, str]]:
    """Split-K variants of one base per algorithm id: accepted candidates, and refusals with why."""
    by_algorithm: dict[int, Candidate] = {}
    for base in bases:
        by_algorithm.setdefault(base.config.algorithm_id, base)
    found: list[Candidate | tuple[AlgorithmConfig, str]] = []
    for base in by_algorithm.values():
        schemes = gemm.reductions(base.config.algorithm_id)
        for config in _variants(base.config, splits, schemes or (0,)):
            if len(found) >= most:
                return found
            if config.split_k > 1 and not schemes:
                found.append((config, NO_SCHEME))
                continue
            try:
                found.append(explicit_candidate(gemm, config))
            except Refused as refusal:
                found.append((config, str(refusal)))
    return found


def _variants(
    base: AlgorithmConfig, splits: Sequence[int], schemes: Sequence[int]
) -> list[AlgorithmConfig]:
    variants = []
    for count in splits:
        for scheme in (0,) if count == 1 else schemes:
            numbers = {**base.to_json(), "split_k": count, "reduction_scheme": scheme}
            variants.append(AlgorithmConfig(**numbers))
    return variants


def default_candidate(
    gemm: Gemm, explicit: Sequence[Candidate], enumerated: Sequence[Candidate]
) -> Candidate:
    """The first explicit candidate that fits the workspace, else the first of the heuristic's.

    Raises NothingMatched.
    """
    for candidate in (*explicit, *enumerated):
        if candidate.required_workspace <= gemm.workspace_bytes:
            return candidate
    raise NothingMatched(
        f"no valid candidate fits {gemm.workspace_bytes} bytes of workspace; "
        "give more with --workspace."
    )
