"""The plain way that kclab is measured against: no database, no queue, no worker processes.

Capture copies, hashes and saves on the caller's thread and appends two JSONL lines a call. Replay
rewrites its whole JSON report after each case. Import links files by name, trusts their size, and
reads the whole destination line by line. It is also a command, so that whole processes compare:

    python -m benchmarks.seed_way replay ROOT
    python -m benchmarks.seed_way import SOURCE DESTINATION
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """All rows of a JSONL file, none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


class Writer:
    """Writes each call's tensors and rows before it returns."""

    def __init__(self, root: Path, definitions: dict[str, Row]):
        self.root = root
        self.definitions = definitions
        (root / "results").mkdir(parents=True, exist_ok=True)

    def tensor(self, value: Any, name: str) -> Row:
        """Copy, hash and save one tensor; returns its descriptor."""
        import torch
        from safetensors.torch import save_file

        copy = value.detach().to("cpu", copy=True).contiguous()
        digest = hashlib.sha256(json.dumps([str(copy.dtype), list(copy.shape)]).encode())
        digest.update(memoryview(copy.reshape(-1).view(torch.uint8).numpy()))
        relative = Path("blob/workloads") / name / f"{digest.hexdigest()}.safetensors"
        path = self.root / relative
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            save_file({"tensor": copy}, str(temporary))
            temporary.replace(path)
        return {"type": "safetensors", "path": relative.as_posix(), "tensor_key": "tensor"}

    def write(self, name: str, inputs: Row, output: Any, axes: Row, provenance: Row) -> None:
        """Record one call: its tensors, its receipt line and its workload line."""
        descriptors = {key: self.tensor(value, name) for key, value in inputs.items()}
        identity = json.dumps([name, descriptors, provenance], sort_keys=True)
        uid = str(uuid.uuid5(uuid.NAMESPACE_URL, identity))
        expected = self.tensor(output, name)
        receipt = dict(provenance, definition=name, uuid=uid, axes=axes, expected_output=expected)
        workload = {"uuid": uid, "axes": axes, "inputs": descriptors}
        op_type = self.definitions[name]["op_type"]
        rows = self.root / "workloads" / op_type / f"{name}.jsonl"
        rows.parent.mkdir(parents=True, exist_ok=True)
        for path, row in (
            (self.root / "results/captures.jsonl", receipt),
            (rows, {"definition": name, "workload": workload}),
        ):
            with path.open("a") as stream:
                stream.write(json.dumps(row, sort_keys=True) + "\n")


class References:
    """The definitions beside a root, each reference compiled when it is first met."""

    def __init__(self, root: Path):
        paths = (root.parent / "definitions").rglob("*.json")
        self._sources = {
            b["name"]: b["reference"] for p in paths for b in [json.loads(p.read_text())]
        }
        self._runtimes: Row = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._runtimes:
            namespace: Row = {}
            exec(compile(self._sources[name], name, "exec"), namespace)
            self._runtimes[name] = namespace["run"]
        return self._runtimes[name]


def replay(root: Path) -> Row:
    """Run every workload through its reference; the report is saved after each case."""
    import torch

    references = References(root)
    receipts = {row["uuid"]: row for row in read_rows(root / "results/captures.jsonl")}
    report: Row = {"torch": torch.__version__, "device": "cpu", "tolerances": {}, "cases": []}
    for path in sorted((root / "workloads").rglob("*.jsonl")):
        for row in read_rows(path):
            started = time.monotonic()
            name, workload = row["definition"], row["workload"]
            inputs = {key: _load(root, value) for key, value in workload["inputs"].items()}
            with torch.inference_mode():
                actual = references[name](**inputs)
            expected = _load(root, receipts[workload["uuid"]]["expected_output"])
            torch.testing.assert_close(actual, expected, rtol=0.016, atol=0.005)
            error = (actual.float() - expected.float()).abs().max().item()
            report["cases"].append(
                {
                    "definition": name,
                    "uuid": workload["uuid"],
                    "axes": workload["axes"],
                    "status": "passed",
                    "max_absolute_errors": [error],
                    "seconds": time.monotonic() - started,
                }
            )
            (root / "results/replay.json").write_text(json.dumps(report, indent=2) + "\n")
            print("REPLAY passed", name, workload["axes"], flush=True)
    return report


def _load(root: Path, descriptor: Row) -> Any:
    from safetensors.torch import load_file

    if descriptor["type"] == "scalar":
        return descriptor["value"]
    return load_file(str(root / descriptor["path"]))[descriptor["tensor_key"]]


def import_capture(source: Path, destination: Path) -> int:
    """Merge a validated root; returns how many receipts were new."""
    report = json.loads((source / "results/replay.json").read_text())
    receipts = read_rows(source / "results/captures.jsonl")
    if {row["uuid"] for row in receipts} != {row["uuid"] for row in report["cases"]}:
        raise ValueError("the replay does not cover every receipt")
    for path in (source / "blob").rglob("*.safetensors"):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            if target.stat().st_size != path.stat().st_size:
                raise ValueError(f"conflict: {target}")
            continue
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)
    for path in (source / "workloads").rglob("*.jsonl"):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        known = {row["workload"]["uuid"] for row in read_rows(target)}
        with target.open("a") as stream:
            for line in path.read_text().splitlines():
                if json.loads(line)["workload"]["uuid"] not in known:
                    stream.write(line + "\n")
    merged = destination / "captures.jsonl"
    known = {row["uuid"] for row in read_rows(merged)}
    cases = {case["uuid"]: case for case in report["cases"]}
    fresh = [row for row in receipts if row["uuid"] not in known]
    with merged.open("a") as stream:
        for row in fresh:
            row["validation"] = dict(cases[row["uuid"]], torch=report["torch"])
            stream.write(json.dumps(row, sort_keys=True) + "\n")
    return len(fresh)


def main(arguments: list[str]) -> None:
    """The command that whole-process comparisons run."""
    match arguments:
        case ["replay", root]:
            replay(Path(root))
        case ["import", source, destination]:
            import_capture(Path(source), Path(destination))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
