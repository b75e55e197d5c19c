"""NVIDIA's headers and the fake CUDA libraries, built once for the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kclab.fc2.backends.cublaslt import CublasLt

ROOT = Path(__file__).resolve().parents[2]
CSRC_TESTS = ROOT / "csrc" / "tests"
FLAGS = ["-O2", "-std=c++17", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def cuda_headers() -> Path:
    """CUDA 13's C headers out of pip wheels, kept beside the checkout's other environments."""
    folder = ROOT / ".venv-cuda-headers"
    spec = importlib.util.spec_from_file_location("fetch", CSRC_TESTS / "fetch_headers.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with _alone(folder):
        return Path(module.fetch(folder))


@pytest.fixture(scope="session")
def fake_cuda(cuda_headers: Path) -> Path:
    """A folder with libcublasLt, libcudart and libcuda that run on host memory."""
    sources = sorted(CSRC_TESTS.glob("fake_*"))
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = ROOT / ".venv-cuda-headers" / "fakes" / key
    with _alone(folder):
        if not (folder / "libcublasLt.so.13").exists():
            _build_fakes(cuda_headers, folder)
    return folder


def _build_fakes(headers: Path, folder: Path) -> None:
    def soname(name: str) -> str:
        return f"-Wl,-soname,lib{name}.so.13"

    base = ["g++", *FLAGS, "-isystem", str(headers)]
    linked = ["-Wl,--no-undefined", f"-Wl,-rpath,{folder}"]
    cudart, cublaslt = folder / "libcudart.so.13", folder / "libcublasLt.so.13"
    subprocess.run(
        [*base, str(CSRC_TESTS / "fake_cudart.cpp"), "-o", str(cudart), soname("cudart")],
        check=True,
    )
    (folder / "libcuda.so.1").symlink_to(cudart.name)
    kernels = [str(CSRC_TESTS / f"fake_{name}.cpp") for name in ("cublaslt", "kernels")]
    subprocess.run(
        [*base, *kernels, "-o", str(cublaslt), str(cudart), soname("cublasLt"), *linked],
        check=True,
    )


@pytest.fixture
def fake_environment(
    fake_cuda: Path, cuda_headers: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The environment in which kclab builds against the fakes; set for this process too."""
    values = {
        "KCLAB_CUDA_LIBRARIES": str(fake_cuda),
        "KCLAB_CUDA_HEADERS": str(cuda_headers),
        "KCLAB_BUILD_DIR": str(ROOT / ".venv-cuda-headers" / "built"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


@pytest.fixture
def cublaslt(fake_environment: dict[str, str]) -> CublasLt:
    """The cublaslt backend over the fakes."""
    return CublasLt.load()
