"""A package that is installed in an environment: what is known of it, and the GPU code in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sm120_wheels.errors import SettingError
from sm120_wheels.gpus import Gpu
from sm120_wheels.process import run
from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.smoke import packages
from sm120_wheels.prove.smoke.run import Tested
from sm120_wheels.prove.verdict import judge

#: Answers with a distribution's name, asked by that or by what one imports of it.
_NAME = """
import importlib.metadata as m, sys
name = sys.argv[1]
try:
    m.distribution(name)
except m.PackageNotFoundError:
    known = set(m.packages_distributions().get(name, ()))
    if len(known) != 1:
        raise
    (name,) = known
print(name)
"""
#: Answers where a package would be imported from, without importing it; of one that is not imported, its libraries.
_ASK = """
import importlib.metadata as m, importlib.util as u, json, os, sys
found = m.distribution(sys.argv[1])
places = [u.find_spec(name) for name in sys.argv[2:]]
tops = dict.fromkeys(f.parts[0] for f in found.files or [] if f.suffix == ".so" and len(f.parts) > 1)
print(json.dumps({"name": found.metadata["Name"], "version": found.version,
                  "folders": [os.path.dirname(p.origin) if p and p.origin else "" for p in places]
                  or [str(found.locate_file(top)) for top in tops]}))
"""


def find_installed(name: str, python: Path, gpus: Sequence[Gpu], *, sha256: str = "", wheel: str = "") -> Tested:
    """Look at an installed distribution, named so or by what one imports of it.

    Raises :class:`SettingError` where it is not there. ``sha256`` and ``wheel`` (a filename) say which file it was
    installed from, where that is known.
    """
    answer = run([python.absolute(), "-I", "-c", _NAME, name], check=False)
    if not answer.ok:
        raise SettingError(
            f"{name} is not installed in that environment",
            where=str(python),
            why=(answer.output.strip().splitlines() or ["no answer"])[-1],
            hint="--environment names the Python it is installed in",
        )
    distribution = answer.output.strip().splitlines()[-1]
    package = packages.package_of(distribution)
    imports = package.imports if package is not None else ()
    said = run([python.absolute(), "-I", "-c", _ASK, distribution, *imports]).output
    told = json.loads(said.strip().splitlines()[-1])
    folder = next((Path(f) for f in told["folders"] if f), None)
    subject = inputs.subject(str(folder)) if folder is not None else None
    found = audit(subject, ()) if subject is not None else None
    return Tested(
        name=wheel or f"installed {told['name']} {told['version']}",
        sha256=sha256,
        distribution=str(told["name"]),
        version=str(told["version"]),
        package=package,
        root=None,
        subject=subject,
        audit=found,
        verdict=judge(found, gpus[0].capability).answer if found is not None and gpus else "",
    )
