"""What `make demo` runs: capture a real diffusion transformer, replay, import, look.

Every step is the `kclab` command that is printed before it; nothing happens behind them. The
stores stay in `demo-out/`, so that you can go on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

OUT = Path("demo-out")
CAPTURED = OUT / "captured" / "kclab.db"
LAB = OUT / "lab" / "kclab.db"
MODEL = Path(__file__).with_name("qwen_image.py")


def kclab(*arguments: str) -> None:
    """Show a kclab command and run it; a failure ends the demo with its exit code."""
    print(f"\n$ kclab {' '.join(arguments)}", flush=True)
    finished = subprocess.run([sys.executable, "-m", "kclab", *arguments], check=False)
    if finished.returncode:
        sys.exit(f"demo: that command ended with exit code {finished.returncode}.")


def answer(*arguments: str) -> list[dict[str, object]]:
    """The rows of a kclab command in JSON."""
    command = [sys.executable, "-m", "kclab", *arguments, "--format", "json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows: list[dict[str, object]] = json.loads(output)
    return rows


def main() -> None:
    """Run the steps in order and check what they claim."""
    os.environ["PYTHONUNBUFFERED"] = "1"
    shutil.rmtree(OUT, ignore_errors=True)
    captured, lab = ("--db", str(CAPTURED)), ("--db", str(LAB))
    print("A tiny Qwen-Image-2.1 transformer (diffusers' own model code, random weights) denoises")
    print("an image; kclab captures its operators while it runs.")
    kclab(
        *captured, "capture", "run", "--adapter", "qwen-image", "--adapter", "torch",
        "--define-missing", "--tag", "demo", "--", sys.executable, str(MODEL),
    )  # fmt: skip
    kclab(*captured, "replay", "--oracle")
    kclab(*lab, "import", str(CAPTURED.parent))
    before = answer(*lab, "workloads", "list", "-n", "100000")
    kclab(*lab, "import", str(CAPTURED.parent))
    after = answer(*lab, "workloads", "list", "-n", "100000")
    kclab(*lab, "workloads", "list", "-n", "12")
    kclab(*lab, "captures", "list", "-n", "8")
    kclab(*lab, "runs", "list")
    kclab(*lab, "db", "check")
    sweep(lab)
    definitions = {str(row["definition"]) for row in after}
    if len(definitions) < 3 or len(before) != len(after):
        sys.exit(
            f"demo: {len(definitions)} definitions; {len(before)}, then {len(after)} workloads"
        )
    print(f"\n{len(definitions)} definitions, {len(after)} workloads; the stores are in {OUT}/.")


def sweep(lab: tuple[str, str]) -> None:
    """The FC2 lab on a tiny MiniMax-H3 boundary, with GEMM algorithms that run on this CPU."""
    print("\nThe feed-forward GEMM of a tiny MiniMax-H3, and every algorithm for it.")
    kclab(*lab, "fc2", "capture", "--tiny", "--dtype", "bf16", "--backend", "cpu")
    kclab(*lab, "fc2", "sweep", "last", "--backend", "cpu", "--budget", "8s")
    kclab(*lab, "fc2", "best", "--workspace", "32MiB")
    kclab(*lab, "fc2", "pareto")


if __name__ == "__main__":
    main()
