"""A local server that speaks S3 (moto's), counting what is asked of it and failing on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
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
    bucket: str = "bucket"
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(method, key) of every request for an object."""
    gate: Callable[[str, str], None] = lambda method, key: None
    """Called before each object's request; may block, or raise to cut the connection."""

    @property
    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    @cached_property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="x",
            aws_secret_access_key="y",
            region_name="us-east-1",
        )

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
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def _counted(self, application: Any) -> Answer:
        def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            _, _, rest = environ["PATH_INFO"].partition("/")
            key = rest.partition("/")[2]
            test = self.current
            if (
                test is not None
                and key
                and "boto3" not in environ.get("HTTP_USER_AGENT", "").lower()
            ):
                test.gate(environ["REQUEST_METHOD"], key)
                test.requests.append((environ["REQUEST_METHOD"], key))
            return application(environ, start)

        return answer

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
