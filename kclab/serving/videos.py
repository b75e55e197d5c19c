"""Videos as video servers answer them: a job to ask after, then MP4 bytes."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kclab.core.errors import EngineFailed
from kclab.serving.requests import Client, Reply, Watch, pause

POLL_SECONDS = 0.5
"""Between two questions after a job."""
DONE, FAILED = "completed", "failed"
ERROR_TEXT = 300
"""Characters of what a server says that an error repeats."""


@dataclass(frozen=True, slots=True)
class Video:
    """One checked video."""

    data: bytes
    """The MP4 file."""
    width: int
    height: int
    seconds: float
    tracks: int
    """2 with sound."""


def finished_job(
    client: Client, endpoint: str, created: Any, seconds: float, watch: Watch
) -> dict[str, Any]:
    """Ask after a job, as the server answered its request, until it is done; the job at its end.

    Raises EngineFailed for one that fails, is forgotten, or is not done after `seconds`.
    """
    number = created.get("id") if isinstance(created, dict) else None
    if not isinstance(number, str) or not number:
        raise EngineFailed("the answer names no job.")
    deadline, job = time.monotonic() + seconds, created
    while job.get("status") != DONE:
        if job.get("status") == FAILED:
            raise EngineFailed(f"job {number} failed: {_why(job.get('error'))}")
        if time.monotonic() > deadline:
            told = f"{job.get('status')}, {job.get('progress')} %"
            raise EngineFailed(f"job {number} was not done within {seconds:g} seconds ({told}).")
        pause(POLL_SECONDS, watch)
        job = _job_of(client.get(f"{endpoint}/{number}", watch), number)
    return dict(job)


def _job_of(reply: Reply, number: str) -> dict[str, Any]:
    try:
        job = json.loads(reply.text)
    except ValueError:
        job = None
    if not reply.ok or not isinstance(job, dict):
        told = reply.text[:ERROR_TEXT]
        raise EngineFailed(f"job {number}: the server answered HTTP {reply.status}: {told}")
    return job


def _why(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "no reason given")[:ERROR_TEXT]


def fetch_videos(
    client: Client, endpoint: str, job: dict[str, Any], count: int, watch: Watch
) -> Iterator[Video]:
    """The videos of a job that is done, each checked. Raises EngineFailed naming the first bad."""
    for number in range(count):
        what = f"video {number + 1} of {count}"
        reply = client.get(f"{endpoint}/{job['id']}/content?variant={number}", watch)
        if not reply.ok:
            told = reply.text[:ERROR_TEXT]
            raise EngineFailed(f"{what}: the server answered HTTP {reply.status}: {told}")
        yield parse_mp4(reply.data, what)


# ISO/IEC 14496-12: a file is a sequence of boxes, [size u32][kind], contents after them.


def parse_mp4(data: bytes, what: str) -> Video:
    """Check that the file is whole, and read its size, length and tracks from its headers."""
    if data[4:8] != b"ftyp":
        begins = data[:8].hex(" ") or "nothing"
        raise EngineFailed(f"{what}: not an MP4 file; it begins with {begins}.")
    try:
        movie = dict(_boxes(data)).get(b"moov")
        if movie is None:
            raise ValueError("it has no headers")
        tracks = [dict(_boxes(body)) for kind, body in _boxes(movie) if kind == b"trak"]
        sizes = [_size(track[b"tkhd"]) for track in tracks]
        width, height = next(size for size in sizes if all(size))
        seconds = _seconds(dict(_boxes(movie))[b"mvhd"])
    except (ValueError, KeyError, StopIteration, struct.error) as error:
        why = str(error) or "it has no picture"
        raise EngineFailed(f"{what}: an MP4 file of {len(data)} bytes, damaged: {why}.") from error
    return Video(data, width, height, seconds, len(tracks))


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(kind, contents) of each box; raises ValueError for one that is cut off."""
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        begin = at + 8
        if size == 1:
            (size,), begin = struct.unpack_from(">Q", data, begin), begin + 8
        end = len(data) if size == 0 else at + size
        if end > len(data) or end < begin:
            raise ValueError(f"its {kind.decode('latin-1')} part is cut off")
        yield kind, data[begin:end]
        at = end


def _size(header: bytes) -> tuple[int, int]:
    """Width and height, pixels: the last two numbers of a track's header, 16.16 fixed point."""
    width, height = struct.unpack(">II", header[-8:])
    return width >> 16, height >> 16


def _seconds(header: bytes) -> float:
    """Length of a movie, from its header: version 1 has times of 64 bits."""
    layout, at = (">IQ", 20) if header[0] == 1 else (">II", 12)
    scale, length = struct.unpack_from(layout, header, at)
    return round(length / scale, 3) if scale else 0.0
