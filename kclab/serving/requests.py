"""Talking HTTP to a server while watching that it lives."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import requests

from kclab.core.errors import EngineFailed
from kclab.core.times import now_us

HEALTH_SECONDS = 5.0
"""For one look at /health."""
CONNECT_SECONDS = 10.0
DEATH_SECONDS = 1.0
"""A dying engine closes its connections a little before it is gone."""
TICK_SECONDS = 0.1
PAUSE_SECONDS = 0.5
"""Between two looks at /health."""

Result = TypeVar("Result")
Watch = Callable[[], None]
"""Called about ten times a second while something is awaited; raises to give up."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    data: bytes
    finished_us: int
    """When the whole answer was there, microseconds UTC."""

    @property
    def text(self) -> str:
        """The body, as servers of JSON write it."""
        return self.data.decode("utf-8", errors="replace")

    @property
    def ok(self) -> bool:
        """Whether the server says that it did what it was asked."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that goes with a form."""

    name: str
    data: bytes


class Client:
    """A server's HTTP endpoints. Proxies from the environment are not used."""

    def __init__(self, url: str, timeout: float):
        self.url = url.rstrip("/")
        self.timeout = timeout
        """Seconds for one request, whole."""
        self._session = requests.Session()
        self._session.trust_env = False

    def is_healthy(self) -> bool:
        """Whether /health says yes now."""
        try:
            return self._session.get(f"{self.url}/health", timeout=HEALTH_SECONDS).ok
        except requests.RequestException:
            return False

    def wait_until_healthy(self, seconds: float, watch: Watch) -> None:
        """Raise EngineFailed after `seconds`; `watch` raises what it has against going on."""
        deadline = time.monotonic() + seconds
        while not _watched(self.is_healthy, watch):
            if time.monotonic() > deadline:
                raise EngineFailed(f"{self.url} did not become healthy within {seconds:g} seconds.")
            pause(PAUSE_SECONDS, watch)

    def post(
        self, endpoint: str, payload: Mapping[str, Any], upload: Upload | None, watch: Watch
    ) -> Reply:
        """Send JSON, or a form with an image, and wait for the whole answer.

        Raises EngineFailed where none comes, and what `watch` raises meanwhile.
        """

        return self._exchange("POST", endpoint, watch, _body(payload, upload))

    def get(self, endpoint: str, watch: Watch) -> Reply:
        """Ask for what lies there, and wait for the whole of it; raises as `post`."""
        return self._exchange("GET", endpoint, watch, {})

    def _exchange(self, method: str, endpoint: str, watch: Watch, body: dict[str, Any]) -> Reply:
        def send() -> Reply:
            response = self._session.request(
                method,
                f"{self.url}{endpoint}",
                **body,
                timeout=(CONNECT_SECONDS, self.timeout),
            )
            data = response.content
            return Reply(response.status_code, data, now_us())

        try:
            return _watched(send, _with_deadline(watch, self.timeout, endpoint))
        except requests.Timeout as error:
            raise _too_late(endpoint, self.timeout) from error
        except requests.RequestException as error:
            pause(DEATH_SECONDS, watch)  # a dying engine explains it better
            raise EngineFailed(f"{endpoint}: no whole answer came ({_reason(error)}).") from error


def _body(payload: Mapping[str, Any], upload: Upload | None) -> dict[str, Any]:
    if upload is None:
        return {"json": dict(payload)}
    form = {
        key: json.dumps(value) if isinstance(value, dict | list | bool) else value
        for key, value in payload.items()
    }
    return {"data": form, "files": {"image": (upload.name, upload.data, "image/png")}}


def _with_deadline(watch: Watch, seconds: float, endpoint: str) -> Watch:
    deadline = time.monotonic() + seconds

    def watched() -> None:
        watch()
        if time.monotonic() > deadline:
            raise _too_late(endpoint, seconds)

    return watched


def _too_late(endpoint: str, seconds: float) -> EngineFailed:
    return EngineFailed(f"{endpoint}: no answer within {seconds:g} seconds.")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def pause(seconds: float, watch: Watch) -> None:
    """Wait, and watch meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch()
        time.sleep(TICK_SECONDS)


def _watched(work: Callable[[], Result], watch: Watch) -> Result:
    """`work()` on a thread of its own, so that `watch` can give up on it. A daemon: nobody waits.

    A thread that is given up on ends with the engine, which closes its connection.
    """
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # raised where somebody waits for it
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name="kclab-request")
    thread.start()
    while thread.is_alive():
        thread.join(TICK_SECONDS)
        if thread.is_alive():
            watch()
    if failure:
        raise failure[0]
    return outcome[0]
