"""Where things lie on disk: our data (recipes, patches), the cache, the build folder and the output folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

_PACKAGE = Path(__file__).resolve().parent


def data_root() -> Path:
    """The folder that holds recipes/ and patches/.

    ``SM120_DATA_DIR`` (recipes of your own, with their locks in recipes/locks/), else a checkout's root, else the
    installed package's data.
    """
    if named := _from_environment("SM120_DATA_DIR"):
        return named
    checkout = _PACKAGE.parent.parent
    if (checkout / "recipes").is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout
    return _PACKAGE / "_data"


def recipes_root() -> Path:
    return data_root() / "recipes"


def patches_root() -> Path:
    return data_root() / "patches"


def cache_root() -> Path:
    """Shared by all builds of a user, safe to delete: ``SM120_CACHE_DIR`` or the platform's cache folder."""
    return _from_environment("SM120_CACHE_DIR") or Path(platformdirs.user_cache_path("sm120-wheels"))


def build_root() -> Path:
    """Work folders of builds: ``SM120_BUILD_DIR``, or ``build/`` in the current folder."""
    return _from_environment("SM120_BUILD_DIR") or Path.cwd() / "build"


def dist_root() -> Path:
    """Finished wheels: ``SM120_DIST_DIR``, or ``dist/`` in the current folder."""
    return _from_environment("SM120_DIST_DIR") or Path.cwd() / "dist"


def runtime_root() -> Path:
    """Sockets and locks of this user on this host (the compile broker).

    ``SM120_RUNTIME_DIR``, else a folder in XDG_RUNTIME_DIR, else one of this user's in the temporary folder, since
    containers and CI seldom have a login session. Whoever makes it must make it private (mode 700) and check that.
    """
    if named := _from_environment("SM120_RUNTIME_DIR"):
        return named
    if session := _from_environment("XDG_RUNTIME_DIR"):
        return session / "sm120-wheels"
    return Path(tempfile.gettempdir()) / f"sm120-wheels-{os.getuid()}"


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).expanduser().absolute() if value else None
