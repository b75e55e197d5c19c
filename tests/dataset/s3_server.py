"""A local server that speaks S3 (moto's), counting what is asked of it and failing on demand."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIDTESTONLY",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
}
Answer = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@dataclass
class S3:
    """The server, seen from a test that has one bucket of its own."""

    url: str
    client: Any
    """boto3's, whose own requests are not counted."""
    bucket: str = "bucket"
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(method, key) of every answered request for an object."""
    gate: Callable[[str, str], None] = lambda method, key: None
    """Called before each object's request; may block, or raise to cut the connection."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _working: int = 0

    def answer(self, environ: dict[str, Any], work: Callable[[], list[bytes]]) -> list[bytes]:
        """Count a request for an object once it is answered."""
        request = environ["REQUEST_METHOD"], environ["PATH_INFO"].split("/", 2)[2]
        self.gate(*request)
        with self._lock:
            self._working += 1
        try:
            return work()
        finally:
            with self._lock:
                self._working -= 1
                self.requests.append(request)

    def settle(self) -> None:
        """Wait until what is being answered has been."""
        while self._working:
            time.sleep(0.01)

    @property
    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    def listed(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def empty(self) -> None:
        """Remove the bucket with everything in it."""
        client = self.client
        for key in self.listed():
            client.delete_object(Bucket=self.bucket, Key=key)
        client.delete_bucket(Bucket=self.bucket)

    def asked(self, method: str, ending: str = "") -> list[str]:
        """Keys of the object requests so far."""
        return [key for m, key in self.requests if m == method and key.endswith(ending)]


class Server:
    """One process-wide moto; `current` is whom requests are told to."""

    def __init__(self) -> None:
        self.current: S3 | None = None
        application = DomainDispatcherApplication(create_backend_app)
        self._http = make_server(
            "127.0.0.1", 0, self._counted(application), threaded=True, request_handler=_Quiet
        )
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="x",
            aws_secret_access_key="y",
            region_name="us-east-1",
        )
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def _counted(self, application: Any) -> Answer:
        def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            key = environ["PATH_INFO"].lstrip("/").partition("/")[2]
            ours = "boto3" in environ.get("HTTP_USER_AGENT", "").lower()
            if self.current is None or not key or ours:
                return application(environ, start)
            return self.current.answer(environ, lambda: list(application(environ, start)))

        return answer

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def killed(s3: S3, method: str, tensors: int, *words: object) -> Iterator[None]:
    """Run `kclab words` until the server has answered for this many tensors, then kill -9 it.

    What it asked after that is never answered, not even once the block begins.
    """
    reached, released = threading.Event(), threading.Event()

    def hold(asked: str, key: str) -> None:
        if key.endswith(".safetensors") and len(s3.asked(method, ".safetensors")) >= tensors:
            reached.set()
            released.wait(60)
            raise ConnectionAbortedError

    s3.gate = hold
    command = [sys.executable, "-m", "kclab", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert reached.wait(60), process.communicate(timeout=5)
        process.kill()
        process.communicate()
        s3.settle()
        s3.gate = lambda method, key: None
        yield
    finally:
        released.set()
