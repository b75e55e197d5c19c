"""`kclab import hf://…`: Hugging Face's own client against a local stand-in for the service."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.conftest import Cli
from tests.dataset.builder import RootBuilder, floats

TREE = "/api/datasets/team/set/tree/main"
FILES = "/datasets/team/set/resolve/main/"


class Hub(ThreadingHTTPServer):
    """One public dataset repository: what it is, its list of files, and the files."""

    files: dict[str, bytes]
    served: dict[str, bytes]
    """What is answered in a file's place, where that is not the file."""

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "HF_HUB_OFFLINE": "0"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/datasets/team/set":
            self._json({"id": "team/set", "sha": "a" * 40, "private": False, "siblings": []})
        elif path == TREE:
            self._json([_listed(name, data) for name, data in self.server.files.items()])
        elif path.removeprefix(FILES) in self.server.files:
            name = path.removeprefix(FILES)
            self._range(self.server.served.get(name, self.server.files[name]))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _range(self, data: bytes) -> None:
        begin, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
        where = f"bytes {begin}-{end}/{len(data)}"
        self._send(206, data[int(begin) : int(end) + 1], {"Content-Range": where})

    def _send(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _listed(name: str, data: bytes) -> dict[str, object]:
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    found: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": oid}
    if name.endswith(".safetensors"):
        found["lfs"] = {
            "oid": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "pointerSize": 130,
        }
    return found


@pytest.fixture
def hub(source: RootBuilder) -> Iterator[Hub]:
    """The repository, holding a FlashInfer-Trace dataset of two workloads."""
    source.double(1, receipt=False)
    source.double(2, receipt=False)
    roots = (source.root, source.folder)
    with Hub(("127.0.0.1", 0), _Handler) as server:
        server.served = {}
        server.files = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for root in roots
            for path in root.rglob("*")
            if path.is_file() and not path.relative_to(root).is_relative_to("root")
        }
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_dataset_of_hugging_face_comes_once(hub: Hub, cli: Cli, tmp_path: Path) -> None:
    environment = {**hub.environment, "HF_HOME": str(tmp_path / "hf")}
    done = cli("import", "hf://datasets/team/set", "--format", "json", env=environment)
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert (shown["source"], shown["workloads"], shown["objects fetched"]) == (
        "FlashInfer-Trace dataset",
        2,
        4,
    )
    again = cli("import", "hf://datasets/team/set", "--format", "json", env=environment)
    assert json.loads(again.out)["workloads"] == 0
    assert json.loads(again.out)["objects fetched"] == 2  # the rows and the definition


def test_altered_files_and_unknown_repositories_are_refused_by_name(
    hub: Hub, cli: Cli, tmp_path: Path
) -> None:
    environment = {**hub.environment, "HF_HOME": str(tmp_path / "hf")}
    name = f"blob/workloads/double/{floats(1).digest()}.safetensors"
    hub.served[name] = hub.files[name][:-1] + b"\x7f"
    done = cli("import", "hf://datasets/team/set", env=environment)
    assert (done.code, f"hf://datasets/team/set/{name}: " in done.err) == (1, True)
    assert "cut short or altered" in done.err
    unknown = cli("import", "hf://datasets/team/other", env=environment)
    assert (unknown.code, "repository not found" in unknown.err) == (2, True)
