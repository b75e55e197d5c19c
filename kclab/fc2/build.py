"""Building the C library with plain g++ against the cuBLAS that torch uses, once per version.

The result is cached by everything that it was made of: sources, header version, the library's
path and size, compiler and flags.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kclab.core.errors import EnvironmentLacking

FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
FLAGS_STRICT = (*FLAGS, "-Werror")

HEADERS = ("cublasLt.h", "cuda_runtime_api.h", "cuda.h", "crt/host_defines.h", "nv/target")
"""What the sources and cublasLt.h include; a pip wheel each, or one CUDA toolkit."""

LIBRARIES = ("libcublasLt.so", "libcudart.so")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The headers and libraries to build against."""

    include: tuple[Path, ...]
    """Folders for -isystem; together they hold HEADERS."""
    cublaslt: Path
    cudart: Path
    header_version: str
    """cuBLAS's, as `13.1.0`."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library that is ready to load."""

    path: Path
    toolkit: Toolkit
    compiler: str
    seconds: float
    """0 when it came from the cache."""

    def facts(self) -> dict[str, str | float]:
        """What `fc2 compile` shows."""
        return {
            "library": str(self.path),
            "cublaslt": str(self.toolkit.cublaslt),
            "cudart": str(self.toolkit.cudart),
            "headers": ", ".join(str(folder) for folder in self.toolkit.include),
            "header version": self.toolkit.header_version,
            "compiler": self.compiler,
            "build seconds": round(self.seconds, 2),
        }


def sources_folder() -> Path:
    """`csrc/` of a checkout, or its copy inside an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "csrc", package / "_csrc"):
        if (folder / "kclab_lt.h").is_file():
            return folder
    raise EnvironmentLacking("kclab's C sources are missing; reinstall kclab.")


def find_toolkit() -> Toolkit:
    """Headers and libraries, in this order: KCLAB_CUDA_LIBRARIES and KCLAB_CUDA_HEADERS (folders
    joined by ':'), what this process has loaded, NVIDIA's pip packages, CUDA_HOME.

    Raises EnvironmentLacking naming what is missing.
    """
    cublaslt, cudart = (_library(name) for name in LIBRARIES)
    include = _include_folders()
    header = next(f / "cublas_api.h" for f in include if (f / "cublas_api.h").is_file())
    return Toolkit(include, cublaslt, cudart, _header_version(header))


def _library(name: str) -> Path:
    for folder in _named("KCLAB_CUDA_LIBRARIES"):
        if found := _versioned(folder, name):
            return found
        raise EnvironmentLacking(f"{folder} (KCLAB_CUDA_LIBRARIES) holds no {name}.")
    if loaded := loaded_library(name):
        return loaded
    for folder in _library_folders():
        if found := _versioned(folder, name):
            return found
    raise EnvironmentLacking(
        f"no {name} on this machine: the cublaslt backend needs torch's CUDA build "
        "(or nvidia-cublas and nvidia-cuda-runtime); the cpu backend works without."
    )


def loaded_library(name: str) -> Path | None:
    """The file of a shared library that this process has mapped, as torch does on import."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return None
    for line in maps.read_text(encoding="utf-8").splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(f"{name}."):
            return path
    return None


def _named(variable: str) -> list[Path]:
    return [Path(part) for part in os.environ.get(variable, "").split(":") if part]


def _versioned(folder: Path, name: str) -> Path | None:
    found = sorted(folder.glob(f"{name}.[0-9]*"), key=lambda path: len(path.name))
    return found[0] if found else None


def _pip_folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        yield from sorted(path for path in Path(root).glob("*") if path.is_dir())


def _toolkit_folders() -> Iterator[Path]:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    compiler = shutil.which("nvcc")
    if home:
        yield Path(home)
    if compiler:
        yield Path(compiler).resolve().parent.parent
    yield Path("/usr/local/cuda")


def _library_folders() -> Iterator[Path]:
    for folder in (*_pip_folders(), *_toolkit_folders()):
        yield folder / "lib"
        yield folder / "lib64"


def _include_folders() -> tuple[Path, ...]:
    roots = [*_pip_folders(), *_toolkit_folders()]
    candidates = _named("KCLAB_CUDA_HEADERS") + [root / "include" for root in roots]
    candidates += [folder / "cccl" for folder in candidates]
    chosen: list[Path] = []
    for header in HEADERS:
        folder = next((c for c in candidates if (c / header).is_file()), None)
        if folder is None:
            raise EnvironmentLacking(
                f"no {header} on this machine: pip install nvidia-cublas nvidia-cuda-runtime "
                "nvidia-cuda-crt nvidia-cuda-cccl, or set KCLAB_CUDA_HEADERS."
            )
        if folder not in chosen:
            chosen.append(folder)
    return tuple(chosen)


def _header_version(header: Path) -> str:
    text = header.read_text(encoding="utf-8", errors="replace")
    parts = [re.search(rf"#define CUBLAS_VER_{p} (\d+)", text) for p in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part.group(1) if part else "?" for part in parts)


def cache_folder() -> Path:
    """KCLAB_BUILD_DIR, or kclab's part of the user's cache."""
    if named := os.environ.get("KCLAB_BUILD_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kclab" / "lt"


def build(
    toolkit: Toolkit | None = None, *, folder: Path | None = None, strict: bool = False
) -> Built:
    """The library for a toolkit, from the cache or compiled now.

    `strict` turns warnings into errors. Raises EnvironmentLacking when there is no compiler or it
    refuses.
    """
    kit = toolkit or find_toolkit()
    compiler = _compiler()
    flags = FLAGS_STRICT if strict else FLAGS
    target = cached(kit, folder or cache_folder(), flags)
    if target.is_file():
        return Built(target, kit, compiler, 0.0)
    started = time.perf_counter()
    target.parent.mkdir(parents=True, exist_ok=True)
    _compile(kit, flags, target)
    return Built(target, kit, compiler, time.perf_counter() - started)


def cached(kit: Toolkit, folder: Path, flags: tuple[str, ...] = FLAGS) -> Path:
    """Where the library for a toolkit lies once it is built."""
    return folder / _key(kit, _compiler(), flags) / "libkclab_lt.so"


@lru_cache(maxsize=1)
def _compiler() -> str:
    command = os.environ.get("CXX", "g++")
    if shutil.which(command) is None:
        raise EnvironmentLacking(
            f"no C++ compiler {command}: install g++ (or set CXX); the cpu backend works without."
        )
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()[0]


def _key(kit: Toolkit, compiler: str, flags: tuple[str, ...]) -> str:
    hasher = hashlib.sha256(repr((compiler, flags, kit.header_version)).encode())
    for library in (kit.cublaslt, kit.cudart):
        hasher.update(f"{library.resolve()}:{library.stat().st_size}".encode())
    for source in sorted(sources_folder().glob("*.[ch]*")):
        hasher.update(source.name.encode() + source.read_bytes())
    return hasher.hexdigest()[:24]


def _compile(kit: Toolkit, flags: tuple[str, ...], target: Path) -> None:
    includes = [part for folder in kit.include for part in ("-isystem", str(folder))]
    folders = sorted({str(kit.cublaslt.parent), str(kit.cudart.parent)})
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".so", delete=False) as temporary:
        output = Path(temporary.name)
    command = [os.environ.get("CXX", "g++"), *flags, *includes]
    command += [str(path) for path in sorted(sources_folder().glob("*.cpp"))]
    command += ["-o", str(output), str(kit.cublaslt), str(kit.cudart), "-ldl", "-Wl,--no-undefined"]
    command += [f"-Wl,-rpath,{folder}" for folder in folders]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        output.unlink(missing_ok=True)
        raise EnvironmentLacking(f"g++ could not build kclab's C library:\n{result.stderr.strip()}")
    output.replace(target)
