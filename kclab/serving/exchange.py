"""One case, asked and answered: its request row, its images, and whether the answer is right."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclab.core.errors import BadUsage, EngineFailed
from kclab.core.times import now_us
from kclab.db.connection import writing
from kclab.db.rows import add_request
from kclab.db.store import Store
from kclab.db.values import to_json
from kclab.serving.cases import Case, Kind
from kclab.serving.files import file_path, keep_file, sha256_of
from kclab.serving.images import Image, image_of
from kclab.serving.payloads import ENDPOINTS, payload_of
from kclab.serving.requests import Client, Reply, Upload, Watch
from kclab.serving.videos import Video, fetch_videos, finished_job

ERROR_TEXT = 4_000
"""Characters of an error response that are kept."""


@dataclass(slots=True)
class Answer:
    """What a response was worth."""

    response: Any
    """The body without image bytes."""
    outputs: list[dict[str, Any]]
    """Images, videos: sha256, file within the store, size. Completions: finish reason, length."""
    problem: str | None = None
    """Why the response is not what was asked for."""
    finished_us: int | None = None
    """When a job was done or anything was given up, UTC; None where the response was the end."""


@dataclass(slots=True)
class Asked:
    """A request on its way."""

    case: Case
    request_id: str
    payload: dict[str, Any]
    upload: Upload | None
    row: int
    started_us: int

    @property
    def told(self) -> dict[str, Any]:
        """The payload as receipts show it."""
        return self.payload | self._image

    @property
    def facts(self) -> dict[str, Any]:
        """What receipts say about the request besides its payload."""
        image = self._image.get("image", {})
        digest = {"reference_image_sha256": image["sha256"]} if image else {}
        return {"requested_outputs": self.case.outputs, **digest}

    @property
    def _image(self) -> dict[str, Any]:
        if self.upload is None:
            return {}
        data = self.upload.data
        return {"image": {"sha256": sha256_of(data), "bytes": len(data)}}


class Exchanges:
    """Asks a server case after case, and keeps what it answered in the store."""

    def __init__(
        self,
        store: Store,
        connection: sqlite3.Connection,
        run_id: int,
        client: Client,
        model: str,
        inference_steps: int | None,
        architecture: str | None = None,
    ):
        self._store = store
        self._connection = connection
        self._run_id = run_id
        self._client = client
        self._model = model
        self._inference_steps = inference_steps
        self._architecture = architecture
        self._images: dict[str, Path] = {}
        """Case -> its first image."""

    def begin(self, case: Case) -> Asked:
        """Store the request's row before anything is sent."""
        asked = Asked(
            case,
            case.request_id,
            payload_of(case, self._model, self._inference_steps, self._architecture),
            self._upload(case),
            row=0,
            started_us=now_us(),
        )
        with writing(self._connection):
            asked.row = add_request(
                self._connection, self._run_id, asked.request_id, asked.told, asked.started_us
            )
        return asked

    def finish(self, asked: Asked, watch: Watch, activate: Callable[[], None]) -> Answer:
        """Send it, keep the answer and its images, and only then judge it.

        `activate` is called right before. Raises EngineFailed where the answer is missing or wrong;
        the row is complete by then, whatever ends this.
        """
        reply = None
        try:
            activate()
            reply = self._client.post(
                ENDPOINTS[asked.case.kind], asked.payload, asked.upload, watch
            )
            answer = self._judged(asked.case, reply, watch)
        except BaseException as error:
            problem = str(error) or type(error).__name__
            self._keep(asked, reply, Answer(None, [], problem, finished_us=now_us()))
            raise
        self._keep(asked, reply, answer)
        if answer.problem is not None:
            raise EngineFailed(f"{asked.request_id}: {answer.problem}")
        return answer

    def _upload(self, case: Case) -> Upload | None:
        if case.kind is not Kind.EDIT:
            return None
        reference = str(case.reference)
        path = self._images.get(reference, Path(reference))
        try:
            return Upload(f"{case.name}.png", path.read_bytes())
        except OSError as error:
            raise BadUsage(f"{path}: cannot be read ({error.strerror}).") from error

    def _judged(self, case: Case, reply: Reply, watch: Watch) -> Answer:
        if not reply.ok:
            text = reply.text[:ERROR_TEXT]
            return Answer(text, [], f"the server answered HTTP {reply.status}: {text[:300]}")
        try:
            body = json.loads(reply.text)
        except ValueError:
            return Answer(reply.text[:ERROR_TEXT], [], "the answer is not JSON.")
        if case.kind is Kind.VIDEO:
            return self._videos_of(case, body, watch)
        if case.kind in (Kind.IMAGE, Kind.EDIT):
            return self._images_of(case, body)
        return _completions_of(case, body)

    def _images_of(self, case: Case, body: Any) -> Answer:
        items = body.get("data") if isinstance(body, dict) else None
        if not isinstance(items, list):
            return Answer(body, [], "the answer has no list of images.")
        answer = Answer(body, [])
        for number, item in enumerate(items):
            try:
                image = image_of(item, f"image {number + 1} of {len(items)}")
            except EngineFailed as error:
                answer.problem = answer.problem or str(error)
                continue
            answer.outputs.append(self._kept(case, image))
            item.pop("b64_json")
        _check_count(answer, case, len(items), "images")
        return answer

    def _videos_of(self, case: Case, body: Any, watch: Watch) -> Answer:
        """Wait for the job that the answer names, and keep what it made."""
        endpoint, answer = ENDPOINTS[case.kind], Answer(body, [])
        try:
            job = finished_job(self._client, endpoint, body, self._client.timeout, watch)
            answer.response = job
            for video in fetch_videos(self._client, endpoint, job, _made(job, case), watch):
                answer.outputs.append(self._kept_video(video))
        except EngineFailed as error:
            watch()  # a dead engine explains it better
            answer.problem = str(error)
        answer.finished_us = now_us()
        _check_count(answer, case, len(answer.outputs), "videos")
        return answer

    def _kept_video(self, video: Video) -> dict[str, Any]:
        digest = keep_file(self._store, video.data, ".mp4")
        path = file_path(self._store, digest, ".mp4")
        return {
            "sha256": digest,
            "path": str(path.relative_to(self._store.database.parent)),
            "bytes": len(video.data),
            "width": video.width,
            "height": video.height,
            "seconds": video.seconds,
            "tracks": video.tracks,
        }

    def _kept(self, case: Case, image: Image) -> dict[str, Any]:
        digest = keep_file(self._store, image.data, ".png")
        path = file_path(self._store, digest, ".png")
        self._images.setdefault(case.name, path)
        return {
            "sha256": digest,
            "path": str(path.relative_to(self._store.database.parent)),
            "bytes": len(image.data),
            "width": image.width,
            "height": image.height,
            "channels": image.channels,
        }

    def _keep(self, asked: Asked, reply: Reply | None, answer: Answer) -> None:
        finished = answer.finished_us or (reply.finished_us if reply else now_us())
        receipt = {
            "response": answer.response,
            "outputs": answer.outputs,
            "requested_outputs": asked.case.outputs,
            "actual_outputs": len(answer.outputs),
            "elapsed_us": finished - asked.started_us,
            **({"error": answer.problem} if answer.problem else {}),
        }
        with writing(self._connection):
            self._connection.execute(
                "UPDATE request SET response = ?, status_code = ?, finished_us = ? WHERE id = ?",
                (to_json(receipt), reply.status if reply else None, finished, asked.row),
            )


def _made(job: dict[str, Any], case: Case) -> int:
    """How many videos a job says that it made; as many as asked where it does not say."""
    count = job.get("num_outputs")
    return count if isinstance(count, int) else case.outputs


def _completions_of(case: Case, body: Any) -> Answer:
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list):
        return Answer(body, [], "the answer has no list of choices.")
    answer = Answer(body, [])
    for number, choice in enumerate(choices):
        text = _text_of(case, choice)
        if text is None:
            answer.problem = f"choice {number + 1} of {len(choices)} has no text."
            continue
        answer.outputs.append(
            {"characters": len(text), "finish_reason": choice.get("finish_reason")}
        )
    _check_count(answer, case, len(choices), "choices")
    return answer


def _text_of(case: Case, choice: Any) -> str | None:
    if not isinstance(choice, dict):
        return None
    message = choice.get("message")
    holder, key = (message, "content") if case.kind is Kind.CHAT else (choice, "text")
    text = holder.get(key) if isinstance(holder, dict) else None
    return text if isinstance(text, str) else None


def _check_count(answer: Answer, case: Case, found: int, what: str) -> None:
    if answer.problem is None and found != case.outputs:
        answer.problem = f"{found} {what} came, {case.outputs} were asked for."
