"""Run the benchmarks: `python -m benchmarks [NAME …] [--quick] [--db kclab.db]`.

The same generated data goes through kclab and through the plain way (`benchmarks.seed_way`) in
alternating pairs. Each comparison is printed as a ratio with its spread, and its samples are kept
as rows of a `benchmark` run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import capturing, gpus, importing, looking, replaying, serving, ui
from benchmarks.measure import BASELINE, KCLAB, Result, store_result
from kclab.core.errors import KclabError
from kclab.core.stats import median
from kclab.db.runs import run
from kclab.db.store import Store, open_for_writing

BENCHMARKS: dict[str, Callable[[Path, bool], Iterable[Result]]] = {
    # First: file systems take long over new files where many were deleted a moment ago.
    "import": lambda at, quick: importing.imports(at, 200 if quick else 2000, 3 if quick else 9),
    "capture": lambda at, quick: [
        capturing.throughput(at, 200 if quick else 2000, 3 if quick else 7)
    ],
    "stall": lambda at, quick: [capturing.stall(at, 6 if quick else 20)],
    "idle": lambda at, quick: [capturing.idle(at, 10 if quick else 60)],
    "replay": lambda at, quick: replaying.replays(at, 400 if quick else 4000, 1 if quick else 2),
    "large": lambda at, quick: importing.large_imports(
        at, 16 if quick else 128, 16, 2 if quick else 6
    ),
    "looking": lambda at, quick: looking.looking(at, 5 if quick else 15),
    "serving": lambda at, quick: serving.serving(
        at, 2 if quick else 8, 5 if quick else 25, 5 if quick else 40
    ),
    "gpus": lambda at, quick: gpus.gpus(at, 80.0, 3, quick=quick),
    "ui": lambda at, quick: ui.ui(at, 12 if quick else 40),
}


def main() -> None:
    """Parse, and say in one sentence what stops the rest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it out")
    parser.add_argument("--db", type=Path, default=Path("bench-out/kclab.db"))
    choices = parser.parse_args()
    names = choices.names or list(BENCHMARKS)
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    try:
        _measure(names, Store.at(choices.db), quick=choices.quick)
    except KclabError as error:
        sys.exit(f"benchmarks: {error}")


def _measure(names: list[str], store: Store, *, quick: bool) -> None:
    """Run, print, store."""
    open_for_writing(store)
    parameters = {"names": names, "quick": quick}
    print(f"{'':<52} {'baseline':>11} {'kclab':>11}   ratio (spread), target")
    with run(store, "benchmark", parameters) as active:
        for name in names:
            with tempfile.TemporaryDirectory(prefix="kclab-bench-") as folder:
                for result in BENCHMARKS[name](Path(folder) / "work", quick):
                    store_result(active, result)
                    print(_line(result), flush=True)
        active.finish_as("passed", f"{', '.join(names)}")
    print(f"rows: {store.database}, run {active.uuid}", file=sys.stderr)


def _line(result: Result) -> str:
    baseline, ours = result.times(BASELINE), result.times(KCLAB)
    ratios = sorted(a / b for a, b in zip(baseline, ours, strict=True))
    return (
        f"{result.name:<52} {median(baseline):>8.1f} ms {median(ours):>8.1f} ms   "
        f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), {result.target}"
        f"   [A: {result.baseline}]"
    )


if __name__ == "__main__":
    main()
