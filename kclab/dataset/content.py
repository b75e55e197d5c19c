"""From a root's cases to prepared rows: which tensors to read, and whether they fit."""

from __future__ import annotations

from typing import Any

from kclab.core.definition import Definition
from kclab.core.digest import DTYPES, element_count, text_sha256
from kclab.dataset.arrivals import Arrival, Arrivals, Source
from kclab.dataset.cases import Case, FileTensor, Refusal, Root, RootKind
from kclab.dataset.known import Known
from kclab.dataset.options import ImportSummary
from kclab.dataset.prepared import (
    Prepared,
    PreparedWorkload,
    check_content,
    content_uuid,
    dataset_extra,
    input_value,
    prepare_capture,
)
from kclab.dataset.source_file import Failed, NotFetched
from kclab.dataset.tree import Tree
from kclab.db.rows import BlobRow
from kclab.db.values import to_json


class Content:
    """One root's cases on their way to rows."""

    def __init__(
        self, root: Root, cases: list[Case], known: Known, arrivals: Arrivals, tree: Tree
    ) -> None:
        self.root = root
        self.tree = tree
        self.cases = cases
        self.known = known
        self.arrivals = arrivals
        self.prepared = Prepared()
        self._claiming = root.kind is not RootKind.TRACE
        self._vouched: dict[str, Arrival] = {}
        self._stand_ins: dict[str, str] = {}
        """Digest to hint of blobs whose bytes are elsewhere."""
        self._checked: set[Any] = set()
        self._facts: dict[str, list[Any]] = {}

    def prepare(self, summary: ImportSummary) -> Prepared:
        """Read what the store lacks and make rows of it; bad cases add to `summary.refused`."""
        fresh = [case for case in self.cases if not self._is_known(case, summary)]
        claims = {self._claim(tensor) for case in fresh for tensor in _tensors(case)}
        self._vouched = self.known.blobs(claim for claim in claims if claim)
        missing = self._missing(fresh)
        self.tree.fetch(location for location, _ in missing)
        self.arrivals.bring(missing)
        for case in fresh:
            self._prepare_case(case, summary)
        summary.absent = len(self._stand_ins)
        summary.warnings += sorted(set(self._stand_ins.values()))
        return self.prepared

    def _is_known(self, case: Case, summary: ImportSummary) -> bool:
        """Whether nothing of a case is new; one that contradicts the store is refused."""
        if case.receipt is None:
            source = self.known.sources.get((case.definition, case.uuid))
            known = source is not None and self._unchanged(case, source)
            summary.known += known
            return known
        capture = self.known.captures.get(case.capture_uuid)
        if capture is None or (case.verdict is not None and not capture.judged):
            return False
        if self.known.absent and any(t.claim in self.known.absent for t in _tensors(case)):
            return False
        for name, tensor in (case.outputs or {}).items():
            claim = self._claim(tensor)
            if claim and capture.outputs.get(name, claim) != claim:
                reason = f"receipt {case.capture_uuid} is in the store with another {name}"
                self._refuse(case, case.receipt_where, reason, summary)
                return True
        summary.known += 1
        return True

    def _claim(self, tensor: FileTensor) -> str | None:
        """The digest that a file's name claims; a FlashInfer-Trace dataset's names mean nothing."""
        return tensor.claim if self._claiming else None

    def _missing(self, cases: list[Case]) -> list[Source]:
        """The distinct tensors that must be read."""
        sources: dict[Source, None] = {}
        for case in cases:
            for tensor in _tensors(case):
                if self._claim(tensor) not in self._vouched:
                    sources[tensor.location, tensor.key] = None
        return list(sources)

    def _prepare_case(self, case: Case, summary: ImportSummary) -> None:
        definition = self.root.definitions[case.definition]
        inputs: dict[str, Arrival] = {}
        outputs: dict[str, Arrival] = {}
        absent: list[str] = []
        for group, sources in ((inputs, case.inputs), (outputs, case.outputs or {})):
            for name, source in sources.items():
                if not isinstance(source, FileTensor):
                    continue
                found = self._resolve(source)
                if isinstance(found, NotFetched):
                    found = self._stand_in(source, found, definition, case, name)
                    absent.append(name)
                if isinstance(found, Failed):
                    self.tree.doubt(source.location)
                    self._refuse(case, None, found.reason, summary, unsafe=found.unsafe)
                    return
                group[name] = found
        problem = check_content(case, definition, {**inputs, **outputs}, self._checked)
        if problem is not None:
            self._refuse(case, None, problem, summary)
            return
        self._add(case, definition, inputs, outputs, absent, summary)

    def _resolve(self, tensor: FileTensor) -> Arrival | NotFetched | Failed:
        claim = self._claim(tensor)
        if claim in self._vouched:
            return self._vouched[claim]
        found = self.arrivals.outcomes[tensor.location, tensor.key]
        if claim and isinstance(found, Arrival) and found.sha256 != claim:
            return Failed(
                f"damaged blob {tensor.location}: its content has digest {found.sha256[:12]}…,"
                f" its name says {claim[:12]}…"
            )
        return found

    def _stand_in(
        self,
        tensor: FileTensor,
        pointer: NotFetched,
        definition: Definition,
        case: Case,
        name: str,
    ) -> Arrival | Failed:
        """A blob row for bytes that Git LFS did not fetch: the claimed digest, or a made-up one."""
        spec = definition.spec(name)
        axes = {**case.axes, **definition.const_axes}
        unknown = [axis for axis in spec.shape or () if axis not in axes]
        path = tensor.text.removeprefix("./")
        if unknown:
            return Failed(f"{path} is a Git LFS pointer, and nothing gives {unknown[0]} a size")
        shape = tuple(axes[axis] for axis in spec.shape or ())
        claim = self._claim(tensor)
        sha256 = claim or text_sha256(f"git-lfs {pointer.oid} {tensor.key}")
        self._stand_ins[sha256] = (
            f"{path}: a Git LFS pointer; run git lfs pull --include '{path}' in {self.tree.origin}"
            " and import it again."
        )
        nbytes = element_count(shape) * DTYPES[spec.dtype].itemsize
        return Arrival(sha256, spec.dtype, shape, nbytes)

    def _add(
        self,
        case: Case,
        definition: Definition,
        inputs: dict[str, Arrival],
        outputs: dict[str, Arrival],
        absent: list[str],
        summary: ImportSummary,
    ) -> None:
        uuid = content_uuid(case, inputs)
        for tensor in (*inputs.values(), *outputs.values()):
            if tensor.sha256 not in self.prepared.blobs:
                self.prepared.blobs[tensor.sha256] = self._blob_row(tensor)
        if uuid not in self.prepared.workloads:
            self.prepared.workloads[uuid] = PreparedWorkload(
                uuid=uuid,
                definition=definition,
                axes=to_json(case.axes),
                inputs={n: input_value(s, inputs.get(n)) for n, s in case.inputs.items()},
                extra=self._extra(case, absent),
                replaces=self._replaces(case, uuid),
            )
        if case.receipt is None:
            self.prepared.bare.add(uuid)
            return
        tensors = {**inputs, **outputs}
        capture = prepare_capture(case, uuid, tensors, self.root.receipts_mtime_us)
        self.prepared.captures[capture.uuid] = capture
        summary.unvalidated += capture.verdict is None and bool(capture.outputs)

    def _blob_row(self, tensor: Arrival) -> BlobRow:
        hint = self._stand_ins.get(tensor.sha256)
        return BlobRow(tensor.sha256, tensor.dtype, tensor.shape, tensor.nbytes, hint is None, hint)

    def _extra(self, case: Case, absent: list[str]) -> str | None:
        if case.receipt is not None:
            return to_json({"row": case.extra}) if case.extra else None
        files = {
            source.text: self._facts_of(source.location)
            for source in case.inputs.values()
            if isinstance(source, FileTensor)
        }
        return dataset_extra(case, absent, files)

    def _replaces(self, case: Case, uuid: str) -> str | None:
        source = self.known.sources.get((case.definition, case.uuid))
        if case.receipt is not None or source is None or not source.get("absent"):
            return None
        return str(source["workload"]) if source["workload"] != uuid else None

    def _unchanged(self, case: Case, extra: dict[str, Any]) -> bool:
        """Whether a row without a receipt names the same files, untouched since they came."""
        tensors = {n: s for n, s in case.inputs.items() if isinstance(s, FileTensor)}
        if extra.get("paths") != {n: [s.text, s.key] for n, s in tensors.items()}:
            return False
        files = extra.get("files", {})
        now = {s.text: self._facts_of(s.location) for s in tensors.values()}
        return all(facts and facts == files.get(text) for text, facts in now.items())

    def _facts_of(self, location: str) -> list[Any]:
        if location not in self._facts:
            self._facts[location] = self.tree.facts(location)
        return self._facts[location]

    def _refuse(
        self,
        case: Case,
        where: str | None,
        reason: str,
        summary: ImportSummary,
        *,
        unsafe: bool = False,
    ) -> None:
        summary.refused.append(
            Refusal(where or case.where, reason, case.definition, case.uuid, unsafe)
        )


def _tensors(case: Case) -> list[FileTensor]:
    inputs = [source for source in case.inputs.values() if isinstance(source, FileTensor)]
    return inputs + list((case.outputs or {}).values())
