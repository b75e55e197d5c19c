"""Which rows of a root count as validated, and which are refused for want of it.

A capture counts once the root's own replay passed it; a workload that was never captured (a
FlashInfer-Trace row, an input without content) needs no verdict. Rows that an option lets through
without a verdict are marked when they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from kclab.dataset.cases import Case, Refusal, Root, RootKind
from kclab.dataset.roots import REPORT


def accepted(
    root: Root, include_unvalidated: bool, refused: list[Refusal], warnings: list[str]
) -> list[Case]:
    """The root's good cases; everything else adds to `refused` or `warnings`, named."""
    refused.extend(root.refusals)
    refused.extend(_report_faults(root, include_unvalidated))
    for orphan in root.orphans:
        if orphan.torn:
            warnings.append(f"{orphan.where}: {orphan.uuid}: its workload is the torn line.")
        else:
            refused.append(
                Refusal(
                    orphan.where, f"receipt {orphan.uuid} has no workload row", orphan.definition
                )
            )
    good = []
    unreplayed = _missing_report(root)
    for case in root.cases:
        reason = _objection(case, root, include_unvalidated)
        if reason is None:
            good.append(case)
        elif not (unreplayed and reason == UNJUDGED):
            where = case.receipt_where or case.where
            refused.append(Refusal(where, reason, case.definition, case.uuid))
    return good


LAST_STATUS = (
    "(SELECT r.status FROM replay r WHERE r.capture_id = c.id AND r.status <> 'skipped'"
    " ORDER BY r.started_us DESC, r.id DESC LIMIT 1)"
)
"""SQL: the newest verdict's status on the capture `c` of a store; NULL where none fell."""

UNJUDGED = "no replay has judged it; take it with --include-unvalidated"


def _objection(case: Case, root: Root, include_unvalidated: bool) -> str | None:
    if case.receipt is None:
        if root.kind is RootKind.TRACE or case.random_inputs or include_unvalidated:
            return None
        return "no receipt, so no engine output; take it with --include-unvalidated"
    if case.outputs is None:
        return None
    if case.verdict is None:
        return None if include_unvalidated else UNJUDGED
    status = case.verdict.get("status")
    return None if status == "passed" else f"its replay says {status!r}, not 'passed'"


def _missing_report(root: Root) -> bool:
    """Nobody replayed this root: one refusal says so for all its receipts."""
    return root.report is None and not any(case.verdict for case in root.cases)


def _report_faults(root: Root, include_unvalidated: bool) -> Iterator[Refusal]:
    path = str(root.path / REPORT)
    captures = [case for case in root.cases if case.outputs is not None]
    if captures and _missing_report(root) and not include_unvalidated:
        yield Refusal(
            path,
            f"not there, so none of {len(captures)} captures is validated; "
            f"run kclab replay {root.path} first, or take them with --include-unvalidated",
        )
    if root.report is None:
        return
    if not root.report["cases"]:
        yield Refusal(path, "holds no case; replay the root again")
    known = {case.capture_uuid for case in root.cases} | {orphan.uuid for orphan in root.orphans}
    known |= {refusal.uuid for refusal in root.refusals if refusal.uuid}
    for case in root.report["cases"]:
        if case["uuid"] not in known:
            yield Refusal(path, f"case {case['uuid']} has no receipt", case.get("definition"))
