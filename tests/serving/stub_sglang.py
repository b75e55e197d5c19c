"""Stands in for `sglang serve`: answers as a server does, or as one in trouble.

STUB holds words with commas, each `word` or `word:value`:

    slow:S        /health says 503 for S seconds        never       it says so for ever
    die:RC        says why and exits at once            killed      dies of SIGBUS at once
    diein:S       exits 1 after S seconds, in the middle of whatever
    ignoreterm    SIGTERM does nothing                  child       leaves a stubborn grandchild
    hang          a request is never answered           http500     it fails
    html          the answer is no JSON                 truncated   it ends too early
    few, many     one image too few, too many           listless    no list of images
    dataurl, nopad, newline, foreign, url, nullb64, empty, notpng, cutpng: as what images come
    jobfails, jobnever, jobless, jobgone, cutjob   what becomes of a video's job
    nofile, notmp4, cutmp4, nomovie                what comes as the video
    torch         a model of torch computes two steps a request, and one at each health probe
    stuck         torch's, and its writer hangs at its first tensor
    plugin        loads kclab's plugin, as SGLang would

STUB_PIDS names a file that gets the ids of all processes of the stub, a line each.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WORDS = dict(([*word.split(":"), "1"])[:2] for word in os.environ.get("STUB", "").split(","))
STARTED = time.monotonic()

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def note_pid(pid: int) -> None:
    if os.environ.get("STUB_PIDS"):
        with Path(os.environ["STUB_PIDS"]).open("a") as file:
            file.write(f"{pid}\n")


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 2, 1, 8, 6, 0, 0, 0)
    pixels = zlib.compress(b"\0" + b"\xff\0\0\x80" * 2)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def image() -> dict[str, Any]:
    data = png()
    if "notpng" in WORDS:
        data = b"GIF89a" + data
    if "cutpng" in WORDS:
        data = data[:-12]
    text = base64.b64encode(data).decode()
    shapes: dict[str, Callable[[], dict[str, Any]]] = {
        "dataurl": lambda: {"b64_json": f"data:image/png;base64,{text}"},
        "nopad": lambda: {"b64_json": text.rstrip("=")},
        "newline": lambda: {"b64_json": "\n".join(text[i : i + 8] for i in range(0, len(text), 8))},
        "foreign": lambda: {"b64_json": f"{text[:8]}!!{text[8:]}"},
        "url": lambda: {"url": "http://127.0.0.1:1/image.png"},
        "nullb64": lambda: {"b64_json": None},
        "empty": lambda: {"b64_json": ""},
    }
    made = [shape() for word, shape in shapes.items() if word in WORDS]
    return made[0] if made else {"b64_json": text}


def mp4() -> bytes:
    def box(kind: bytes, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return struct.pack(">I4s", 8 + len(body), kind) + body

    def track(width: int, height: int) -> bytes:
        header = bytes(76) + struct.pack(">II", width << 16, height << 16)
        return box(b"trak", box(b"tkhd", header))

    length = bytes(12) + struct.pack(">II", 1000, 4042) + bytes(80)
    movie = box(b"moov", box(b"mvhd", length), track(0, 0), track(64, 32))
    if "nomovie" in WORDS:
        movie = b""
    data = box(b"ftyp", b"isom") + movie + box(b"mdat", b"pixels")
    if "notmp4" in WORDS:
        data = b"<html>" + data
    return data[:-4] if "cutmp4" in WORDS else data


JOBS: dict[str, dict[str, Any]] = {}


def new_job(asked: dict[str, Any]) -> dict[str, Any]:
    if "jobless" in WORDS:
        return {"object": "video"}
    count = asked.get("n", 1) + ("many" in WORDS) - ("few" in WORDS)
    job = {"id": f"job-{len(JOBS)}", "status": "queued", "progress": 0, "num_outputs": None}
    JOBS[job["id"]] = {**job, "status": "completed", "progress": 100, "num_outputs": count}
    if "jobfails" in WORDS:
        JOBS[job["id"]] = {**job, "status": "failed", "error": {"message": "no VAE in sight"}}
    if "jobnever" in WORDS:
        JOBS[job["id"]] = {**job, "status": "in_progress", "progress": 40}
    if "jobgone" in WORDS:
        JOBS.clear()
    return job


def answer(path: str, asked: dict[str, Any]) -> dict[str, Any]:
    if path.endswith("/videos"):
        return new_job(asked)
    count = int(asked.get("n", 1)) + ("many" in WORDS) - ("few" in WORDS)
    if path.endswith("/chat/completions"):
        return {"choices": [{"message": {"content": "hm"}, "finish_reason": "stop"}] * count}
    if path.endswith("/completions"):
        return {"choices": [{"text": "hm", "finish_reason": "length"}] * count}
    if "listless" in WORDS:
        return {"created": 1}
    return {"created": 1, "data": [image() for _ in range(count)]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    compute: Callable[[int], None] = staticmethod(lambda steps: None)

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, code: int, body: bytes, length: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def reply_video(self) -> None:
        _, _, number, *content = self.path.strip("/").split("/")
        if number not in JOBS or (content and "nofile" in WORDS):
            self.reply(404, b'{"detail": "Video not found"}')
        elif content:
            self.reply(200, mp4())
        else:
            body = json.dumps(JOBS[number]).encode()
            self.reply(200, body[:-9] if "cutjob" in WORDS else body)

    def do_GET(self) -> None:
        if self.path.startswith("/v1/videos/"):
            self.reply_video()
            return
        slow = float(WORDS.get("slow", 0))
        ready = "never" not in WORDS and time.monotonic() - STARTED >= slow
        if ready:
            self.compute(1)
        self.reply(200 if ready else 503, b"{}")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = json.loads(raw) if raw.startswith(b"{") else {"n": 1}
        if "hang" in WORDS:
            time.sleep(600)
        if "http500" in WORDS:
            self.reply(500, b'{"error": "no kernel image is available"}')
            return
        if "html" in WORDS:
            self.reply(200, b"<html>sign in</html>")
            return
        self.compute(2)
        body = json.dumps(answer(self.path, asked)).encode()
        self.reply(200, body, length=len(body) + 100 if "truncated" in WORDS else None)
        if "truncated" in WORDS:
            self.close_connection = True


def load_model() -> Callable[[int], None]:
    """Calls of a root class, each of them one GEMM."""
    import torch

    class StubTransformer(torch.nn.Module):
        __qualname__ = "StubTransformer"

        def __init__(self) -> None:
            super().__init__()
            self.proj = torch.nn.Linear(8, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.proj(x)

    if "stuck" in WORDS:
        from kclab.capture.writer import Writer

        Writer._add_blob = lambda *_: time.sleep(600)
    torch.manual_seed(0)
    model = StubTransformer().to(torch.bfloat16)

    @torch.no_grad()
    def compute(steps: int) -> None:
        for step in range(steps):
            model(torch.full((3, 8), float(step), dtype=torch.bfloat16))

    return compute


def main() -> None:
    note_pid(os.getpid())
    if "die" in WORDS:
        print("torch.OutOfMemoryError: CUDA out of memory", file=sys.stderr, flush=True)
        sys.exit(int(WORDS["die"]))
    if "killed" in WORDS:
        os.kill(os.getpid(), signal.SIGBUS)
    if "ignoreterm" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in WORDS:
        child = subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True)
        note_pid(child.pid)
    if "plugin" in WORDS:
        from kclab.capture.sglang_plugin import load

        load()
    if "torch" in WORDS or "stuck" in WORDS:
        Handler.compute = staticmethod(load_model())
    if "diein" in WORDS:
        threading.Timer(float(WORDS["diein"]), lambda: os._exit(1)).start()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
