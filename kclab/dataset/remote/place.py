"""One folder of an object store: what lies in it, bytes from it, files to it.

Every fault of the service or of the network becomes one sentence that says what to do, and that
holds no secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kclab.core.errors import BadUsage, DatasetRefused, EnvironmentLacking, KclabError
from kclab.core.urls import without_credentials
from kclab.dataset.paths import plain_parts
from kclab.dataset.remote.digests import PART, Digest
from kclab.dataset.remote.pool import WORKERS

S3 = ("s3", "s3a")
HUGGING_FACE = "hf"
HOW_TO_SIGN_IN = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "hf": "set HF_TOKEN, or log in with `hf auth login`",
}
HOW_TO_REACH = {"s3": "AWS_ENDPOINT_URL", "hf": "HF_ENDPOINT"}


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """One object, as a listing tells it."""

    name: str
    """Relative to its place, with `/`."""
    size: int
    """Bytes."""
    version: str
    """What the service changes when the content changes: an ETag, a content hash, a time."""
    written: int | None = None
    """Bytes that its exporter sent, where an export's own list tells it."""
    digest: Digest | None = None
    """Of its bytes, where the service or an export's own list tells it."""


class Place:
    """A folder behind a URL."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet; raises BadUsage for no URL of a known service.

        Raises EnvironmentLacking where the service's package is not installed.
        """
        self.url = without_credentials(url).rstrip("/")
        """To show and to keep; without secrets."""
        self.scheme = urlsplit(url).scheme.lower()
        self._refuse(url)
        with self.explained():
            self.system, path = _connect(url)
        self.root = path.rstrip("/")
        """As fsspec writes it, with the bucket."""

    def _refuse(self, url: str) -> None:
        if self.scheme in (*S3, HUGGING_FACE) and not urlsplit(url).netloc:
            what = "a repository" if self.scheme == HUGGING_FACE else "a bucket"
            raise BadUsage(f"{url}: it names no place; write {self.scheme}:// and {what}.")
        if "::" in url:
            raise BadUsage(f"{self.url}: chained URLs are not read; name the folder itself.")
        if self.scheme in S3 and "@" in urlsplit(url).netloc:
            raise BadUsage(
                f"{self.url}: an s3 URL holds no credentials; {HOW_TO_SIGN_IN['s3']} instead."
            )

    def objects(self, below: str | None = None) -> dict[str, RemoteObject]:
        """Every object below the place (or `below`, a path of fsspec's), by name.

        Objects that stand for folders are left out. Raises DatasetRefused for a name that leads
        out of the place, BadUsage for a bucket that is not there.
        """
        root = self.root if below is None else below
        with self.explained():
            self.system.invalidate_cache()
            found = self.system.find(root, detail=True)
        objects = {}
        for path, facts in found.items():
            name = path.removeprefix(f"{root}/")
            if path != root and facts.get("type") == "file" and self._is_plain(name):
                size, digest = int(facts["size"]), _digest(facts)
                objects[name] = RemoteObject(name, size, _version(facts), digest=digest)
        return objects

    def _is_plain(self, name: str) -> bool:
        """Whether a dataset can name this object; raises DatasetRefused where it leads out."""
        if name.endswith("/"):
            return False
        try:
            return "/".join(plain_parts(name)) == name
        except DatasetRefused as error:
            raise DatasetRefused(f"{self.url}: {error} Nothing was fetched.") from None

    def is_object(self) -> bool:
        """Whether the URL names one object and no folder."""
        with self.explained():
            return bool(self.system.isfile(self.root))

    def parent(self) -> str | None:
        """The folder above, as fsspec writes it; None at the top of a bucket or repository."""
        top = 3 if self.scheme == HUGGING_FACE else 1
        parts = self.root.split("/")
        return "/".join(parts[:-1]) if len(parts) > top else None

    def read(self, path: str, begin: int, end: int) -> bytes:
        """The bytes `begin` to `end` of an object (fsspec's path), fewer where it is shorter."""
        with self.explained():
            return bytes(self.system.cat_file(path, start=begin, end=end))

    def version(self, path: str) -> str:
        """An object's version now."""
        with self.explained():
            self.system.invalidate_cache()
            return _version(self.system.info(path))

    def put(self, file: Path, name: str) -> None:
        """Send a file, whole or not at all, to `name` below the place."""
        more = {"chunksize": PART} if self.scheme in S3 else {}
        with self.explained():
            self.system.put_file(str(file), f"{self.root}/{name}", **more)

    def put_bytes(self, data: bytes, name: str) -> None:
        """As `put`, from memory."""
        with self.explained():
            self.system.pipe_file(f"{self.root}/{name}", data)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Faults as sentences."""
        try:
            yield
        except KclabError:
            raise
        except Exception as error:  # each service's own kinds; those that are no fault of it go on
            told = self._explain(error)
            if told is None:
                raise
            raise told from error

    def _explain(self, error: Exception) -> KclabError | None:
        scheme = "s3" if self.scheme in S3 else self.scheme
        kinds = {kind.__name__ for kind in type(error).__mro__}
        said = without_credentials(" ".join(str(error).split()))[:300]
        sign_in = HOW_TO_SIGN_IN.get(scheme, "see fsspec's page of this service")
        if isinstance(error, FileNotFoundError):
            return BadUsage(f"{self.url}: no such bucket, repository or object ({said}).")
        if isinstance(error, PermissionError) or kinds & _REFUSED:
            return EnvironmentLacking(
                f"{self.url}: access denied ({said}); check who you are: {sign_in}."
            )
        if kinds & _NO_CREDENTIALS:
            return EnvironmentLacking(f"{self.url}: no credentials ({said}); {sign_in}.")
        if kinds & _BAD_NAMES:
            return BadUsage(f"{self.url}: the service takes no such name ({said}).")
        if isinstance(error, OSError) or kinds & _UNREACHABLE:
            where = HOW_TO_REACH.get(scheme)
            check = f"the network and {where}" if where else "the network"
            return EnvironmentLacking(
                f"{self.url}: the service did not answer as it must ({said});"
                f" check {check}, then give the same command again: it goes on where it stopped."
            )
        return None


_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "SSOError",
}
"""Names of botocore's exceptions, which are not imported to be named."""
_REFUSED = {"GatedRepoError", "LocalTokenNotFoundError"}
_BAD_NAMES = {"ParamValidationError", "HFValidationError"}
_UNREACHABLE = {"BotoCoreError", "ClientError", "HTTPError", "TimeoutError", "TransportError"}
"""botocore, aiohttp and httpx, below or above these."""


def _connect(url: str) -> tuple[Any, str]:
    scheme = urlsplit(url).scheme.lower()
    try:
        from fsspec.config import conf
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url, **_settings(scheme, conf))
    except ImportError as error:
        cure = "; pip install 'kclab[remote]'" if scheme in (*S3, HUGGING_FACE) else ""
        raise EnvironmentLacking(
            f"{scheme}:// needs a package that is not installed ({error}){cure}."
        ) from error
    except ValueError as error:
        raise BadUsage(f"{without_credentials(url)}: {error}.") from error
    return system, str(path)


def _settings(scheme: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """What fsspec's own settings of the service leave open: a connection for each transfer."""
    if scheme not in S3:
        return {}
    own = conf.get(scheme, {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": WORKERS, **own}}


def _version(facts: Mapping[str, Any]) -> str:
    for key in ("ETag", "etag", "blob_id", "xet_hash", "md5Hash", "generation", "content_md5"):
        if facts.get(key):
            return str(facts[key])
    changed = facts.get("LastModified") or facts.get("last_modified") or facts.get("mtime")
    return str(changed or facts.get("created") or "")


def _digest(facts: Mapping[str, Any]) -> Digest | None:
    """What Hugging Face says of the content: of a large file its sha256, else git's own."""
    kept, blob = facts.get("lfs"), facts.get("blob_id")
    if kept:
        found = kept.get("sha256") if isinstance(kept, Mapping) else getattr(kept, "sha256", None)
        return Digest("sha256", found) if isinstance(found, str) else None
    return Digest("git sha1", blob) if isinstance(blob, str) else None
