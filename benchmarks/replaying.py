"""Replay, as whole processes: `kclab replay` against the plain way, and how it grows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.datasets import write_small_root
from benchmarks.measure import Result, paired, seconds


def command(*arguments: str, module: str = "kclab") -> None:
    """Run a Python module as a process of its own; its output is thrown away."""
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, capture_output=True)


def fill_store(folder: Path, root: Path) -> Path:
    """A fresh store that holds `root`; returns its database."""
    database = folder / "kclab.db"
    command("--db", str(database), "import", str(root))
    return database


def replays(scratch: Path, count: int, pairs: int) -> list[Result]:
    """`count` workloads both ways, then twice as many with kclab alone."""
    root, double = scratch / "one" / "root", scratch / "two" / "root"
    write_small_root(root, count, validated=True)
    write_small_root(double, 2 * count, validated=True)
    database = fill_store(scratch / "one-store", root)
    double_database = fill_store(scratch / "two-store", double)

    def plain() -> None:
        command("replay", str(root), module="benchmarks.seed_way")

    def ours() -> None:
        command("--db", str(database), "replay", "--device", "cpu")

    def ours_twice() -> None:
        command("--db", str(double_database), "replay", "--device", "cpu")

    against = paired(
        f"replay {count:,} small GEMMs, whole process",
        "plain way",
        "≥ 10",
        lambda: seconds(plain),
        lambda: seconds(ours),
        pairs=pairs,
        warm_up=0,
    )
    growth = paired(
        f"replay {2 * count:,} against {count:,} (time ratio)",
        f"kclab, {2 * count:,}",
        "≤ 2.2",
        lambda: seconds(ours_twice),
        lambda: seconds(ours),
        pairs=max(pairs, 3),
        warm_up=0,
    )
    shutil.rmtree(scratch)
    return [against, growth]
