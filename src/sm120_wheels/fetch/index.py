"""Find an sdist on the Python package index that pip or uv is configured for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import requests
from packaging.utils import InvalidSdistFilename, parse_sdist_filename
from pypi_simple import PYPI_SIMPLE_ENDPOINT, NoSuchProjectError, PyPISimple

from sm120_wheels.errors import DownloadError, HostUnreachableError
from sm120_wheels.toolchain.indexes import pip_files, pip_settings

#: Seconds without a word from the index after which it is given up.
_TIMEOUT_S = 30.0
_INDEX_HINT = "check the network, or set the index with UV_DEFAULT_INDEX, PIP_INDEX_URL or pip's own configuration"


def index_url(environ: Mapping[str, str] = os.environ) -> str:
    """The simple index to ask: uv's or pip's setting, else the public one."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if environ.get(variable):
            return environ[variable]
    return pip_settings(environ, files=pip_files(environ)).get("index-url") or PYPI_SIMPLE_ENDPOINT


def find_file(filename: str) -> list[str]:
    """URLs of an sdist on the index. Raises :class:`HostUnreachableError` or :class:`DownloadError`."""
    endpoint = index_url()
    try:
        project, _ = parse_sdist_filename(filename)
        with PyPISimple(endpoint) as client:
            page = client.get_project_page(project, timeout=_TIMEOUT_S)
    except InvalidSdistFilename as exc:
        raise DownloadError(f"{filename} is not the name of an sdist", why=str(exc)) from exc
    except NoSuchProjectError as exc:
        raise DownloadError(f"the index does not know {filename}", where=endpoint, hint=_INDEX_HINT) from exc
    except requests.RequestException as exc:
        raise HostUnreachableError(
            "cannot reach the package index", where=endpoint, why=str(exc), hint=_INDEX_HINT
        ) from exc
    except json.JSONDecodeError as exc:
        raise DownloadError("the index gave an unreadable page", where=endpoint, why=str(exc)) from exc
    urls = [package.url for package in page.packages if package.filename == filename]
    if not urls:
        raise DownloadError(f"the index has no file {filename}", where=endpoint, hint=_INDEX_HINT)
    return urls
