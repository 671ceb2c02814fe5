"""Download one file by sha256: resumed where a download broke off, verified, kept in the cache for ever."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests

from sm120_wheels import files
from sm120_wheels.console import note
from sm120_wheels.errors import DownloadError, HashMismatchError, HostUnreachableError, OfflineError
from sm120_wheels.settings import Settings

#: Bytes read at once; when a connection breaks, what arrived of the last chunk is lost.
_CHUNK = 1 << 16
_TIMEOUT_S = (10.0, 60.0)
_ATTEMPTS = 4

MIRROR_HINT = (
    "check the network; or set a mirror with --mirror, SM120_MIRROR or the key mirror in sm120.toml, "
    "for example file:///srv/git/{owner}+{name}/repo"
)


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    path: Path
    came_from: str


def download(
    name: str,
    sha256: str,
    *,
    urls: Sequence[str],
    cache_root: Path,
    settings: Settings,
    find_urls: Callable[[], Sequence[str]] | None = None,
) -> Downloaded:
    """The file with this sha256, from the cache or from the first of ``urls`` (or of ``find_urls()``).

    A broken download is resumed with a Range request, in this run or a later one. Raises :class:`OfflineError`,
    :class:`HostUnreachableError`, :class:`DownloadError` and :class:`HashMismatchError`; what did not match is deleted.
    """
    target = cache_root / "files" / sha256 / name
    if target.is_file():
        return Downloaded(path=target, came_from="cache")
    local = [u for u in urls if u.startswith("file:")]
    if settings.offline and not local:
        raise OfflineError(
            f"{name} is not in the cache, and offline mode forbids to fetch it",
            where=str(target),
            hint="run once without --offline; docs/how-to/build-offline.md shows how to carry a cache over",
        )
    partial = target.with_name(f"{name}.part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    for url in local or urls or (find_urls() if find_urls else ()):
        with files.no_space_is_an_error(target):
            resumed = partial.exists()
            _fetch(url, partial)
            actual = files.sha256_file(partial)
            if actual != sha256 and resumed:  # the rest of an earlier run may be what is wrong (a power cut, say)
                partial.unlink()
                _fetch(url, partial)
                actual = files.sha256_file(partial)
        if actual != sha256:
            partial.unlink()
            raise HashMismatchError(
                f"{name} has another sha256 than its pin",
                where=url,
                why=f"pinned {sha256}\nfound  {actual}",
                hint="the file changed upstream or on the way; do not use it before you know which",
            )
        partial.replace(target)
        return Downloaded(path=target, came_from=url)
    raise DownloadError(f"no place is known for {name}", hint=MIRROR_HINT)


def _fetch(url: str, partial: Path) -> None:
    if url.startswith("file:"):
        path = Path(url2pathname(urlsplit(url).path))
        if not path.is_file():
            raise HostUnreachableError("the mirror has no such file", where=str(path), hint=MIRROR_HINT)
        shutil.copyfile(path, partial)
        return
    note(f"downloading {url.rsplit('/', 1)[-1]}")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _fetch_http(url, partial)
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as exc:
            # What arrived is kept: the next attempt, or the next run, goes on from there.
            have = partial.stat().st_size if partial.exists() else 0
            reached = have or isinstance(exc, requests.exceptions.ChunkedEncodingError)
            if attempt == _ATTEMPTS or not reached:
                raise HostUnreachableError(
                    f"cannot reach {urlsplit(url).netloc}", where=url, why=_reason(exc), hint=MIRROR_HINT
                ) from exc
            note(f"the download broke off at {files.human_bytes(have)}; resuming")
        except requests.RequestException as exc:  # an unusable address, redirects in circles, …
            raise DownloadError("the file cannot be downloaded", where=url, why=str(exc), hint=MIRROR_HINT) from exc
        else:
            return


def _fetch_http(url: str, partial: Path) -> None:
    have = partial.stat().st_size if partial.exists() else 0
    # Compressed on the way, byte positions would not be the file's.
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
        if response.status_code == 416:  # nothing is left to send: the file is whole, or not ours
            return
        if response.status_code >= 400:
            raise DownloadError(
                f"the server answered {response.status_code} {response.reason}", where=url, hint=MIRROR_HINT
            )
        resumed = response.status_code == 206
        expected = int(response.headers.get("Content-Length", 0))
        written = 0
        with partial.open("ab" if resumed else "wb") as stream:
            for chunk in response.iter_content(_CHUNK):
                stream.write(chunk)
                written += len(chunk)
        if expected and written < expected and "Content-Encoding" not in response.headers:
            raise requests.exceptions.ChunkedEncodingError(f"{written} of {expected} bytes arrived")


def _reason(exc: Exception) -> str:
    """The innermost cause, which is what a person can act on."""
    inner: BaseException = exc
    while inner.__cause__ or inner.__context__:
        inner = inner.__cause__ or inner.__context__  # type: ignore[assignment]
    return str(inner) or type(inner).__name__
