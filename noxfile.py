# /// script
# dependencies = ["nox>=2025.5"]
# ///
"""One short session for each thing a person asks for. No logic here: each makes its environment and calls one command.

Options for a command come after ``--``: ``nox -s build_sgl_kernel -- --arch 12.0f --jobs 4``.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["tests"]

TEST_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
#: What each lock of the sessions' own environments is made from, by the session ``lock``.
LOCKED = {
    "dev": ["--all-extras", "--group=dev", "--group=build"],
    "run": ["--extra=serve", "--extra=smoke", "--group=build", "--constraint=requirements/dev.txt"],
}


def _install(session: nox.Session, lock: str = "run") -> None:
    """What the project needs, at the locked versions and hashes, and the project itself."""
    session.install("--require-hashes", "--no-deps", "-r", f"requirements/{lock}.txt")
    session.install("--no-deps", "--no-build-isolation", "-e", ".")


def _sm120(session: nox.Session, *arguments: str) -> None:
    """Install the project into the session's environment and run the ``sm120`` command."""
    _install(session)
    session.run("sm120", *arguments, *session.posargs)


@nox.session
def build_sgl_kernel(session: nox.Session) -> None:
    """Build sgl-kernel for SM120 from its pinned sources. Options after --; see sm120 build --help."""
    _sm120(session, "build", "sgl-kernel")


@nox.session
def build_flashinfer(session: nox.Session) -> None:
    """Build flashinfer-python and its ahead-of-time kernels (shim and provider wheels)."""
    _sm120(session, "build", "flashinfer")


@nox.session
def build_selftest(session: nox.Session) -> None:
    """Build our own small CUDA package: the quickest proof that this machine can build for SM120."""
    _sm120(session, "build", "selftest")


@nox.session
def build_controls(session: nox.Session) -> None:
    """Build the faulty operators that the smoke test must not pass; see docs/how-to/prove-the-smoke-test.md."""
    _sm120(session, "build", "controls")


@nox.session
def plan(session: nox.Session) -> None:
    """Show what a build would use, before anything is downloaded: nox -s plan -- sgl-kernel."""
    _sm120(session, "plan")


@nox.session
def matrix(session: nox.Session) -> None:
    """List, select, explain or build the matrix of all recipes: nox -s matrix -- --only 'sglang_kernel-*' --json"""
    _sm120(session, "matrix")


@nox.session
def summary(session: nox.Session) -> None:
    """One table of wheels, also on the page of a CI run: nox -s summary -- dist/"""
    _sm120(session, "summary")


@nox.session
def release_check(session: nox.Session) -> None:
    """Everything that must be green before a publish: nox -s release_check -- dist/ --tests-report FILE"""
    _install(session, "dev")
    session.run("sm120", "release-check", *session.posargs)


@nox.session
def doctor(session: nox.Session) -> None:
    """Tell what this machine can build, and the command that mends what it cannot."""
    _sm120(session, "doctor")


@nox.session
def publish(session: nox.Session) -> None:
    """Publish wheels into the index below wheels/: nox -s publish -- dist/*.whl"""
    _sm120(session, "index", "publish")


@nox.session
def serve_index(session: nox.Session) -> None:
    """Serve the index below wheels/ on the loopback interface."""
    _sm120(session, "index", "serve")


@nox.session
def audit(session: nox.Session) -> None:
    """Show what GPU code wheels carry, and what a GPU would make of it: nox -s audit -- WHEEL…"""
    _sm120(session, "audit")


@nox.session
def smoke(session: nox.Session) -> None:
    """Launch a wheel's operators on a GPU and check what they compute: nox -s smoke -- WHEEL…"""
    _sm120(session, "smoke")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the test suite, real nvcc included."""
    _install(session, "dev")
    session.run("pytest", "--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder", *session.posargs)


@nox.session(python=TEST_PYTHONS)
def tests_all(session: nox.Session) -> None:
    """Run the quick tests (without nvcc) on every supported Python."""
    _install(session, "dev")
    session.run("pytest", "-m", "not cuda", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy --strict and the checks of recipes and generated files; the same as pre-commit."""
    _install(session, "dev")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("sm120", "check")
    session.run("python", "-m", "sm120_wheels.docs", "--check")


@nox.session
def lock(session: nox.Session) -> None:
    """Make the hash-locked requirement files in recipes/locks and requirements/ anew (--upgrade: newer versions)."""
    _sm120(session, "lock")
    compile_ = ["uv", "pip", "compile", "-q", "--universal", "--generate-hashes", "--no-header", "--no-annotate"]
    for name, groups in LOCKED.items():
        output = f"requirements/{name}.txt"
        session.run(*compile_, "--python-version=3.10", *groups, *session.posargs, "-o", output, "pyproject.toml")


@nox.session
def refresh_patches(session: nox.Session) -> None:
    """Move a recipe's patches to another version: nox -s refresh_patches -- sgl-kernel --version NEW [--from OLD]"""
    _sm120(session, "refresh-patches")


@nox.session
def docs(session: nox.Session) -> None:
    """Generate the reference pages and the JSON Schema from the models."""
    _install(session)
    session.run("python", "-m", "sm120_wheels.docs")


if __name__ == "__main__":
    nox.main()
