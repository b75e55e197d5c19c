"""The blob folder: what is written comes back whole, and nothing else is taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from kclab.blob.folder import BlobFolder, hash_tensor, read_tensor
from kclab.blob.safetensors_file import encode_header
from kclab.blob.tensors import TORCH_DTYPES, to_bytes, to_tensor
from kclab.core.digest import DTYPES, tensor_digest
from kclab.core.errors import BadUsage, BlobAbsent, BlobDamaged

ELEMENTS = b"\x00\x00\x80\x3f\x00\x00\x00\x40"


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path / "blob")


def add(blobs: BlobFolder, data: bytes = ELEMENTS, shape: tuple[int, ...] = (2,)) -> str:
    batch = blobs.batch()
    digest = batch.add("float32", shape, data)
    batch.sync()
    return digest


def test_what_is_added_comes_back(blobs: BlobFolder) -> None:
    digest = add(blobs)
    found = blobs.read(digest)
    assert (found.dtype, found.shape, bytes(found.data)) == ("float32", (2,), ELEMENTS)
    assert digest == tensor_digest("float32", [2], ELEMENTS)
    assert list(blobs.present()) == [digest]
    assert blobs.verify(digest).nbytes == 8


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(1,), (4,), (0, 3), (2, 3)], ids=str)
def test_every_dtype_and_shape_survives_byte_for_byte(
    blobs: BlobFolder, name: str, shape: tuple[int, ...]
) -> None:
    count = int(torch.Size(shape).numel()) * DTYPES[name].itemsize
    raw = torch.tensor([i % 2 for i in range(count)], dtype=torch.uint8)
    tensor = raw.view(TORCH_DTYPES[name]).reshape(shape)
    stored = to_bytes(tensor)
    batch = blobs.batch()
    digest = batch.add(stored.dtype, stored.shape, stored.data)
    again = to_tensor(blobs.read(digest))
    assert again.dtype == tensor.dtype
    assert again.shape == tensor.shape
    assert torch.equal(again.reshape(-1).view(torch.uint8), raw)


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"float4_e2m1fn_x2"}))
def test_a_0d_tensor_stays_0d(blobs: BlobFolder, name: str) -> None:
    raw = torch.ones(DTYPES[name].itemsize, dtype=torch.uint8)
    stored = to_bytes(raw.view(TORCH_DTYPES[name]).reshape(()))
    found = blobs.read(blobs.batch().add(stored.dtype, stored.shape, stored.data))
    assert (found.shape, bytes(found.data)) == ((), bytes(raw.tolist()))
    assert tensor_digest(name, [], found.data) != tensor_digest(name, [1], found.data)


def test_a_0d_tensor_of_packed_values_is_refused(blobs: BlobFolder) -> None:
    with pytest.raises(BadUsage, match="0-d tensor of float4_e2m1fn_x2"):
        blobs.batch().add("float4_e2m1fn_x2", (), b"\0")


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"float4_e2m1fn_x2"}))
def test_the_safetensors_library_reads_our_files(blobs: BlobFolder, name: str) -> None:
    from safetensors.torch import load_file

    tensor = torch.arange(6, dtype=torch.uint8).repeat(DTYPES[name].itemsize) % 2
    tensor = tensor.view(TORCH_DTYPES[name]).reshape(2, 3)
    stored = to_bytes(tensor)
    digest = blobs.batch().add(stored.dtype, stored.shape, stored.data)
    loaded = load_file(blobs.path(digest))["tensor"]
    assert loaded.dtype == tensor.dtype
    assert torch.equal(loaded.view(torch.uint8), tensor.view(torch.uint8))


def test_packed_4_bit_values_are_read_by_the_library(blobs: BlobFolder) -> None:
    from safetensors.torch import load_file

    data = bytes(range(6))
    digest = blobs.batch().add("float4_e2m1fn_x2", (2, 3), data)
    loaded = load_file(blobs.path(digest))["tensor"]
    assert (loaded.shape, loaded.dtype) == ((2, 3), torch.float4_e2m1fn_x2)
    assert bytes(loaded.view(torch.uint8).reshape(-1).tolist()) == data


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0).reshape(3, 4)[:, ::2],
        torch.ones(1).expand(1000),
        torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj(),
        torch.tensor([1 + 2j], dtype=torch.complex64).conj().imag,
        torch.arange(4.0, requires_grad=True),
    ],
    ids=["transposed", "strided", "expanded", "conjugate", "negative", "requires-grad"],
)
def test_logical_values_of_any_view_are_stored(tensor: torch.Tensor) -> None:
    again = to_tensor(to_bytes(tensor))
    assert torch.equal(again, tensor.detach())


def test_a_slice_of_a_large_buffer_stores_only_itself(blobs: BlobFolder) -> None:
    stored = to_bytes(torch.zeros(1 << 20)[:4])
    digest = blobs.batch().add(stored.dtype, stored.shape, stored.data)
    assert blobs.path(digest).stat().st_size < 1024


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_files_get_the_mode_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    code = (
        f"import os, pathlib, kclab.blob.folder as f; os.umask({umask})\n"
        f"b = f.BlobFolder(pathlib.Path({str(tmp_path / 'blob')!r})).batch()\n"
        "d = b.add('uint8', (1,), b'x'); print(oct(b.folder.path(d).stat().st_mode & 0o777))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == oct(0o666 & ~umask)


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: b"",
        lambda f: f[:5],
        lambda f: f[:-4],
        lambda f: f + b"\0",
        lambda f: f[:-4] + b"\x01\x02\x03\x04",
    ],
    ids=["empty", "cut in the header", "cut", "longer", "other bytes"],
)
def test_a_damaged_file_is_told_and_replaced(blobs: BlobFolder, damage: object) -> None:
    digest = add(blobs)
    path = blobs.path(digest)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(BlobDamaged, match=f"damaged blob {path}"):
        blobs.verify(digest)
    assert add(blobs) == digest
    assert blobs.verify(digest).nbytes == 8


def test_a_known_blob_is_not_read_again(blobs: BlobFolder) -> None:
    digest = add(blobs)
    path = blobs.path(digest)
    damaged = path.read_bytes()[:-4] + b"\x01\x02\x03\x04"
    path.write_bytes(damaged)
    blobs.batch().add("float32", (2,), ELEMENTS, known=True)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_known_blob_that_is_gone_or_cut_is_written_again(blobs: BlobFolder, damage: str) -> None:
    digest = add(blobs)
    path = blobs.path(digest)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    blobs.batch().add("float32", (2,), ELEMENTS, known=True)
    assert blobs.verify(digest)


def test_an_absent_blob_says_where_to_look(blobs: BlobFolder) -> None:
    with pytest.raises(BlobAbsent, match="import its source again"):
        blobs.read("ab" * 32)


def test_a_git_lfs_pointer_is_absent_not_damaged(blobs: BlobFolder) -> None:
    digest = add(blobs)
    blobs.path(digest).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(BlobAbsent, match="git lfs pull"):
        blobs.read(digest)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "device"])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "x.safetensors", tmp_path / "target.safetensors"
    digest = BlobFolder(tmp_path / "blob").batch().add("float32", (2,), ELEMENTS)
    target.write_bytes(BlobFolder(tmp_path / "blob").path(digest).read_bytes())
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to(target)
        case "device":
            path = Path("/dev/zero")
    for read in (read_tensor, hash_tensor):
        with pytest.raises(BlobDamaged, match=str(path)):
            read(path, "tensor")


def test_a_link_in_the_place_of_a_blob_is_replaced_by_the_blob(
    blobs: BlobFolder, tmp_path: Path
) -> None:
    digest = add(blobs)
    path = blobs.path(digest)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    add(blobs)
    assert path.is_file() and not path.is_symlink()


def test_a_key_that_is_not_there_is_named(blobs: BlobFolder) -> None:
    with pytest.raises(BlobDamaged, match=r"no tensor 'weight', only \['tensor'\]"):
        read_tensor(blobs.path(add(blobs)), "weight")


def test_a_failed_write_leaves_no_temporary(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space left"):
        blobs.batch().add("float32", (2,), ELEMENTS)
    assert list(blobs.leftovers()) == []
    assert list(blobs.present()) == []


@pytest.mark.parametrize("there", [b"", b"torn", ELEMENTS * 9])
def test_a_blob_created_where_something_lies_takes_its_place(
    blobs: BlobFolder, there: bytes
) -> None:
    digest = tensor_digest("float32", [2], ELEMENTS)
    path = blobs.path(digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(there)
    batch = blobs.batch()
    batch.create(digest, encode_header("float32", (2,), 8), ELEMENTS)
    assert bytes(blobs.read(digest).data) == ELEMENTS
    assert blobs.verify(digest)
    assert list(blobs.leftovers()) == []


def test_leftovers_are_listed_and_are_no_blobs(blobs: BlobFolder) -> None:
    digest = add(blobs)
    temporary = blobs.batch().temporary()
    temporary.write_bytes(b"half")
    stray = blobs.path(digest).with_suffix(".tmp")
    stray.write_bytes(b"half")
    assert sorted(blobs.leftovers()) == sorted([temporary, stray])
    assert list(blobs.present()) == [digest]


def test_threads_that_write_the_same_blob_leave_one_whole_file(blobs: BlobFolder) -> None:
    data = os.urandom(1 << 16)
    barrier = threading.Barrier(8)

    def write() -> None:
        barrier.wait()
        for _ in range(20):
            blobs.batch().add("uint8", (1 << 16,), data)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (digest,) = blobs.present()
    assert blobs.verify(digest)
    assert list(blobs.leftovers()) == []


def test_temporary_names_differ_between_batches_threads_and_forks(blobs: BlobFolder) -> None:
    batch = blobs.batch()
    names = {batch.temporary() for _ in range(100)} | {blobs.batch().temporary()}
    assert len(names) == 101
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(batch.temporary()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(os.read(reader, 4096).decode()) not in names
    os.close(reader), os.close(writer)


def test_a_tensor_larger_than_one_read_is_read_whole(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives at most 2 GiB a read; a file system may give less at any time."""
    import io

    class Slow(io.FileIO):
        def readinto(self, buffer: object) -> int:  # type: ignore[override]
            return super().readinto(memoryview(buffer)[:7])  # type: ignore[arg-type]

    digest = blobs.batch().add("uint8", (100,), bytes(range(100)))
    monkeypatch.setattr("kclab.blob.folder.open_blob", lambda path: Slow(path, "rb"))
    monkeypatch.setattr("kclab.blob.folder.read_slots", lambda file, path: _slots_of(path))
    assert bytes(read_tensor(blobs.path(digest), "tensor").data) == bytes(range(100))
    assert hash_tensor(blobs.path(digest), "tensor")[1] == digest


def _slots_of(path: Path) -> object:
    from kclab.blob.safetensors_file import read_slots

    with path.open("rb", buffering=0) as file:
        return read_slots(file, path)


def test_the_whole_batch_is_durable_after_sync(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    batch = blobs.batch()
    digest = batch.add("float32", (2,), ELEMENTS)
    assert synced == []
    batch.sync()
    path = blobs.path(digest)
    assert {str(path), str(path.parent), str(blobs.root)} <= set(synced)


def test_a_blob_that_another_writer_left_is_synced_too(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.batch().add("float32", (2,), ELEMENTS)
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    batch = blobs.batch()
    batch.add("float32", (2,), ELEMENTS)
    batch.sync()
    assert calls


def test_a_disk_error_during_the_sync_is_not_swallowed(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes

    class Libc:
        def syncfs(self, descriptor: int) -> int:
            ctypes.set_errno(5)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())
    batch = blobs.batch()
    for i in range(20):
        batch.add("uint8", (1,), bytes([i]))
    with pytest.raises(OSError, match="Input/output error"):
        batch.sync()
