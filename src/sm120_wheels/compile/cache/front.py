"""Stands between the build tool, ccache and the compiler; one file, run under three names (see ``ccache.py``).

    sm120-cc-front COMPILER ARGUMENT…            what the build tool starts: shows ccache a command line without folders
    sm120-cc-cpp   COMPILER ARGUMENT… -E SOURCE  what ccache starts to preprocess: every pass of nvcc, not just one
    sm120-cc-run   COMPILER ARGUMENT…            what the launcher starts on a miss: the compile itself

It uses nothing of this package and starts without ``site``, since one stands in front of every compile. It stores and
decides nothing; that is ccache's part.

Folders. Sources, the toolkit and the environment lie elsewhere on each machine. Links in the build folder
(``.sm120-roots/src`` …) stand for them, and every argument that names such a folder is rewritten to go through its
link. The command line, the paths of headers that ccache remembers and the dependency file are then relative to the
build folder and the same everywhere.

Passes. ``nvcc -E`` gives the text of one architecture's device pass only. A change that only the host pass or another
architecture sees would be a hit with an old object (seen with ccache 4.7.5). Here ``nvcc --dryrun`` says which
preprocessor runs the compile consists of, and all of them are run.

Turns. The build tool starts far more compiles than there are cores, and leaves it to the launcher who runs; but ccache
preprocesses before it asks the launcher. So preprocessors take turns, as many at a time as the build has cores: each
takes one of the files that ``SM120_CACHE_TURNS`` names, which the kernel gives back when a process ends, however it
ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys

#: A define that only ccache sees: the digest of the names of all headers. A new header may hide another one or satisfy
#: ``__has_include``; ccache's memory of which headers were read cannot know. As a define it counts in that memory's key
#: and not in that of the preprocessed text.
NAMES_DEFINE = "SM120_HEADER_NAMES"
_HOST_NAMES = re.compile(r"(?:.*-)?(?:cc|c\+\+|gcc|g\+\+|clang|clang\+\+)(?:-[0-9.]+)?")
_COMPILES = frozenset({"-c", "-dc", "-dw", "--compile", "--device-c", "--device-w"})
#: nvcc's long words that ccache does not know, and the short ones that it does.
_SHORT = {
    "--compile": "-c",
    "--dependency-output": "-MF",
    "--generate-dependencies-with-compile": "-MD",
    "--generate-nonsystem-dependencies-with-compile": "-MMD",
    "--output-file": "-o",
}
#: What may stand between a delimiter and a path: an option that takes its value glued on.
_BEFORE = r"((?:^|[\"'=,:; ])(?:-[A-Za-z]+)?)"
_AFTER = r"(?=[/\"'=,:; ]|$)(?!/\.\.)"


def is_nvcc(compiler: str) -> bool:
    return os.path.basename(compiler) == "nvcc"


def is_cacheable(command: list[str]) -> bool:
    """Whether it is a compile of one object by a compiler that we know. CMake's tries are not worth keeping."""
    name = os.path.basename(command[0])
    known = is_nvcc(command[0]) or _HOST_NAMES.fullmatch(name) is not None
    return (
        known
        and not {"-o", "--output-file"}.isdisjoint(command)
        and not _COMPILES.isdisjoint(command)
        and "CMakeScratch" not in os.getcwd()
    )


def roots() -> list[tuple[str, str]]:
    """(folder, how it is named from the current folder), the longest first."""
    links = os.path.relpath(os.environ["SM120_CACHE_LINKS"], os.getcwd())
    found = []
    for line in os.environ["SM120_CACHE_ROOTS"].splitlines():
        folder, _, name = line.rpartition("\t")
        found.append((folder, os.path.join(links, name)))
    return sorted(found, key=lambda item: -len(item[0]))


def rewrite(argument: str, named: list[tuple[str, str]]) -> str:
    """``-I/home/me/build/src/include`` → ``-I.sm120-roots/src/include``. What leaves a root by ``..`` stays."""
    names = dict(named)
    pattern = _BEFORE + "(" + "|".join(re.escape(folder) for folder, _ in named) + ")" + _AFTER
    return re.sub(pattern, lambda match: match.group(1) + names[match.group(2)], argument)


def expanded(arguments: list[str]) -> list[str]:
    """Response files replaced by what is in them: they hold folders too."""
    result: list[str] = []
    pending = iter(arguments)
    for argument in pending:
        name, equals, value = argument.partition("=")
        file = ""
        if argument.startswith("@") and len(argument) > 1:
            file = argument[1:]
        elif name in ("--options-file", "-optf"):
            file = value if equals else next(pending, "")
        if not file:
            result.append(argument)
            continue
        with open(file, encoding="utf-8") as stream:
            result.extend(expanded(shlex.split(stream.read())))
    return result


def front(command: list[str]) -> list[str]:
    launcher = os.environ["SM120_CACHE_LAUNCHER"]
    if not is_cacheable(command):
        return [launcher, *command]
    try:
        arguments = expanded(command[1:])
    except (OSError, ValueError):
        return [launcher, *command]  # the compiler will say what is wrong with the file
    named = roots()
    names = f"-D{NAMES_DEFINE}={os.environ['SM120_CACHE_NAMES']}"
    # the maps of folders come ordered by how deep the folders lie; links are side by side, so any one order will do
    given = _absolute_maps(command[0])
    maps = sorted(rewrite(a, named) for a in arguments if a in given)
    kept = [rewrite(_SHORT.get(a, a), named) for a in arguments if a not in given]
    return [os.environ["SM120_CACHE_CCACHE"], command[0], *kept, *maps, names]


def _absolute_maps(compiler: str) -> list[str]:
    """nvcc finds its own headers by absolute path, so the maps of folders are needed in both forms."""
    variable = "SM120_STABLE_NVCC_FLAGS" if is_nvcc(compiler) else "SM120_STABLE_HOST_FLAGS"
    return os.environ.get(variable, "").splitlines()


def _without_names(arguments: list[str]) -> list[str]:
    return [a for a in arguments if not a.startswith(f"-D{NAMES_DEFINE}=")]


def run(command: list[str]) -> int:
    """Compile, and let the dependency file name the links, so that it holds on another machine too."""
    compiler, *arguments = command
    status = subprocess.call([compiler, *_without_names(arguments), *_absolute_maps(compiler)])
    if status == 0 and "-MF" in arguments[:-1]:
        path = arguments[arguments.index("-MF") + 1]
        with open(path, "rb") as stream:
            text = stream.read()
        with open(path, "wb") as stream:
            stream.write(_without_build_link(_relative(text, rb"^(\s*(?:\S+ ?: ?)?)")))
    return status if status >= 0 else 128 - status


def _without_build_link(text: bytes) -> bytes:
    """What is in the build folder is named as the build tool does, from that folder."""
    links = os.path.relpath(os.environ["SM120_CACHE_LINKS"], os.getcwd())
    base = os.path.dirname(links)
    return text.replace(os.fsencode(f"{links}/build/"), os.fsencode(f"{base}/" if base else ""))


def passes(dryrun: str) -> list[list[str]]:
    """The preprocessor runs in what ``nvcc --dryrun`` says, writing to stdout. Empty where none is understood."""
    found = []
    for line in dryrun.splitlines():
        if not line.startswith("#$ ") or " -E " not in line:
            continue
        words = shlex.split(line[3:])
        words = words[: next((i for i, word in enumerate(words) if word in (">", "2>", "1>", "2>&1")), len(words))]
        if any(word in ("-M", "-MM") for word in words):
            continue
        at = words.index("-o") if "-o" in words else len(words)
        found.append(words[:at] + words[at + 2 :])
    return found


def take_turn() -> None:
    """Wait for a free one of the files that SM120_CACHE_TURNS names; it is held until this process ends."""
    names = os.environ["SM120_CACHE_TURNS"].splitlines()
    for name in names:
        held = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
        else:
            return
    fcntl.flock(os.open(names[os.getpid() % len(names)], os.O_RDWR), fcntl.LOCK_EX)


def preprocess(command: list[str]) -> int:
    """Write the text of all passes to stdout, with line markers that go through the links."""
    compiler, *arguments = command
    arguments = _without_names(arguments) + _absolute_maps(compiler)
    target = None
    if "-o" in arguments[:-1]:
        at = arguments.index("-o")
        target = arguments[at + 1]
        del arguments[at : at + 2]
    if is_nvcc(compiler):
        plain = [a for a in arguments if a not in ("-E", "--preprocess")]
        asked = subprocess.run(
            [compiler, *plain, "-c", "-o", "sm120-pass.o", "--dryrun"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        runs = passes(asked.stderr.decode("utf-8", "surrogateescape")) if asked.returncode == 0 else []
        if len(runs) < 2:  # at least one for the device and one for the host: else compile without the cache
            sys.stderr.write("sm120: the passes of nvcc were not understood; compiling without the cache\n")
            return 1
    else:
        runs = [[compiler, *arguments]]
    with open(target, "wb") if target else sys.stdout.buffer as stream:
        for words in runs:
            ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
            if ran.returncode != 0:
                return ran.returncode
            stream.write(_relative(ran.stdout, rb'^(# \d+ ")'))  # line markers
    return 0


def _relative(text: bytes, before: bytes) -> bytes:
    """Folders that stand behind ``before`` at the start of a line, replaced by their links."""
    names = {os.fsencode(folder) + b"/": os.fsencode(inside) + b"/" for folder, inside in roots()}
    pattern = re.compile(before + b"(" + b"|".join(re.escape(folder) for folder in names) + b")", re.MULTILINE)
    return pattern.sub(lambda match: match.group(1) + names[match.group(2)], text)


def main() -> int:
    name, command = os.path.basename(sys.argv[0]), sys.argv[1:]
    if not command:
        sys.stderr.write(f"usage: {name} COMPILER ARGUMENT…\n")
        return 2
    if name == "sm120-cc-cpp":
        take_turn()
        return preprocess(command)
    if name == "sm120-cc-run":
        return run(command)
    words = front(command)
    try:
        os.execvp(words[0], words)
    except OSError as exc:
        sys.stderr.write(f"{name}: cannot run {words[0]}: {exc.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main())
