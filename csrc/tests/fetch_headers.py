"""Put NVIDIA's C headers for CUDA 13 into one folder: `python csrc/tests/fetch_headers.py FOLDER`.

They come out of pip wheels. The wheels' libraries (half a gigabyte) are not kept, and nothing of
it needs a GPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = (
    "nvidia-cublas==13.1.0.3",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
)
"""cublasLt.h, cuda_runtime_api.h, crt/host_defines.h and nv/target, in this order."""

PREFIX = "nvidia/cu13/include/"
UNUSED = ("cccl/", "cuda/", "cub/", "thrust/")
"""C++ libraries of the last wheel that no C header needs."""


def fetch(folder: Path) -> Path:
    """Fill `folder` with the headers unless it has them; returns it."""
    if (folder / "complete").is_file():
        return folder
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", wheels, *WHEELS]
        subprocess.run(command, check=True)
        for wheel in Path(wheels).glob("*.whl"):
            _extract(wheel, folder)
    (folder / "complete").touch()
    return folder


def _extract(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            relative = name.removeprefix(PREFIX)
            if name.endswith("/") or relative == name or relative.startswith(UNUSED):
                continue
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
