"""Serves an index over HTTP: read-only, loopback unless told otherwise, nothing but what the index shows.

Ranges and conditional requests for files come from Starlette. TLS, accounts and uploads are a proxy's business: the
index is static files, which any web server can serve (docs/how-to/serve-with-nginx.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sm120_wheels.errors import SettingError, ToolMissingError
from sm120_wheels.index.layout import present

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

HTML = "text/html"
SIMPLE_HTML = "application/vnd.pypi.simple.v1+html"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
_LATEST = {
    "application/vnd.pypi.simple.latest+html": SIMPLE_HTML,
    "application/vnd.pypi.simple.latest+json": SIMPLE_JSON,
}
#: A file's URL holds its content's digest: it may be kept for ever.
_FOREVER = "public, max-age=31536000, immutable"
#: A page may be kept, but must be asked about each time: a set that was published together is seen together.
_ASK = "no-cache"


def make_app(root: Path) -> ASGIApp:
    """The web application for an index. Raises :class:`SettingError` where there is none."""
    present(root)
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as exc:
        raise _missing() from exc
    real = root.resolve()

    async def answer(request: Request) -> Response:
        return _answer(real, request)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "HEAD"])])


def serve(root: Path, *, host: str = "127.0.0.1", port: int = 8120) -> None:
    """Serve until interrupted. Raises :class:`SettingError` where the address cannot be used."""
    app = make_app(root)
    try:
        import uvicorn
    except ImportError as exc:
        raise _missing() from exc
    from sm120_wheels.console import note

    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)
    try:
        listening = config.bind_socket()
    except SystemExit as exc:
        raise SettingError(
            f"cannot listen on {host}:{port}", why="the port is taken, or not allowed", hint="choose another --port"
        ) from exc
    with listening:
        listening.listen()  # whoever reads the line below may connect at once
        address, real_port = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        note(f"serving {root} on http://{shown}:{real_port}/ (Ctrl-C ends it)")
        uvicorn.Server(config).run(sockets=[listening])


def choose(accept: str, offered: Sequence[str]) -> str | None:
    """The content type that an Accept header likes best among those offered; None where it takes none of them.

    Of equally liked ones the first offered wins; an empty header takes anything (RFC 9110, 12.5.1).
    """
    quality, chosen = max(((_quality(accept or "*/*", kind), kind) for kind in offered), key=lambda pair: pair[0])
    return chosen if quality > 0 else None


def _quality(accept: str, kind: str) -> float:
    """The q of the most specific range that matches; 0 for none."""
    found: tuple[int, float] = (-1, 0.0)
    for part in accept.split(","):
        name, *parameters = (p.strip().lower() for p in part.split(";"))
        name = _LATEST.get(name, name)
        specific = 2 if name == kind else 1 if name == f"{kind.split('/')[0]}/*" else 0 if name == "*/*" else -1
        if specific > found[0]:
            found = (specific, _q(parameters))
    return found[1]


def _q(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return max(0.0, min(1.0, float(parameter[2:])))
            except ValueError:
                return 0.0
    return 1.0


def locate(root: Path, path: str) -> Path | None:
    """The file or folder that a URL path shows, links followed; None for everything that is not shown.

    ``root`` is resolved. Names that begin with a dot are the index's own and are only reached through its links.
    """
    parts = [p for p in path.split("/") if p]
    if any(p.startswith(".") or "\0" in p or "\\" in p for p in parts):
        return None
    try:
        found = root.joinpath(*parts).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return None
    return found if found.is_relative_to(root) else None


def _answer(root: Path, request: Request) -> Response:
    from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse

    path = request.path_params["path"]
    found = locate(root, path)
    if found is None:
        return PlainTextResponse("not found\n", 404, headers={"cache-control": _ASK})
    if found.is_dir():
        if path and not path.endswith("/"):
            return RedirectResponse(f"{path.rsplit('/', 1)[-1]}/", 301, headers={"cache-control": _ASK})
        return _page(root, found, path, request)
    headers = {"cache-control": _ASK, "x-content-type-options": "nosniff"}
    parts = found.relative_to(root).parts
    if parts[0] == "files" and len(parts) == 4:
        headers["cache-control"] = _FOREVER
        # A wheel's folder is named by its sha256; other files beside it have their own digest in their name.
        headers["etag"] = f'"{parts[2]}"' if found.suffix == ".whl" else f'"{parts[2][:12]}-{found.name[-60:]}"'
    else:
        headers["etag"] = _etag(found.read_bytes())
    if _unchanged(request, headers["etag"]):
        return PlainTextResponse("", 304, headers=headers)
    return FileResponse(found, headers=headers, media_type=_type(found))


def _page(root: Path, folder: Path, path: str, request: Request) -> Response:
    from starlette.responses import PlainTextResponse, Response

    html, json = folder / "index.html", folder / "index.json"
    # The links are followed now, so that headers and body are of one state whatever is published meanwhile.
    html = html.resolve()
    if not html.is_file() or not html.is_relative_to(root):
        return PlainTextResponse("not found\n", 404, headers={"cache-control": _ASK})
    json = json.resolve()
    headers = {"cache-control": _ASK, "x-content-type-options": "nosniff"}
    kind: str | None = HTML
    if json.is_file() and json.is_relative_to(root):
        headers["vary"] = "Accept"
        kind = choose(request.headers.get("accept", ""), (HTML, SIMPLE_JSON, SIMPLE_HTML))
        if kind is None:
            return PlainTextResponse(f"offered: {SIMPLE_JSON}, {SIMPLE_HTML}, {HTML}\n", 406, headers=headers)
    body = (json if kind == SIMPLE_JSON else html).read_bytes()
    headers["etag"] = _etag(body)
    if _unchanged(request, headers["etag"]):
        return PlainTextResponse("", 304, headers=headers)
    media = f"{kind}; charset=utf-8" if kind == HTML else kind
    return Response(body, media_type=media, headers=headers)


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _unchanged(request: Request, etag: str) -> bool:
    wanted = [t.strip().removeprefix("W/") for t in request.headers.get("if-none-match", "").split(",")]
    return etag in wanted or "*" in wanted


def _type(path: Path) -> str:
    known = {
        ".json": "application/json",
        ".html": f"{HTML}; charset=utf-8",
        ".metadata": "text/plain; charset=utf-8",
        ".whl": "application/octet-stream",
    }
    return known.get(path.suffix, "application/octet-stream")


def _missing() -> ToolMissingError:
    return ToolMissingError(
        "serving needs Starlette and uvicorn, which are not installed",
        hint="pip install 'sm120-wheels[serve]', or let any web server serve the folder",
    )
