"""What a consumer gets from our index, launched on a GPU: published, served, installed by uv, and smoke-tested.

``SM120_CONSUMER_WHEEL`` names a wheel for this machine's GPU, ``SM120_SMOKE_PYTHON`` an interpreter with the torch that
it requires. No other host is asked: the index is served on the loopback interface.
"""

from __future__ import annotations

from pathlib import Path

from packaging.utils import parse_wheel_filename

from sm120_wheels import files
from sm120_wheels.index.publish import Options, publish
from tests.gpu.test_controls import named, smoke
from tests.index.serving import served


def test_what_an_index_offers_passes_once_it_is_installed(tmp_path: Path) -> None:
    wheel = Path(named("SM120_CONSUMER_WHEEL"))
    named("SM120_SMOKE_PYTHON")
    name, version, *_ = parse_wheel_filename(wheel.name)
    publish(tmp_path / "index", [wheel], options=Options(allow=frozenset({"partial"})))
    with served(tmp_path / "index") as address:
        code, output, record = smoke(tmp_path, "--from-index", f"{address}simple/", f"{name}=={version}")
    print(output)
    assert (code, record["state"]) == (0, "passed"), output
    assert (record["wheel"], record["wheel_sha256"]) == (wheel.name, files.sha256_file(wheel))
    assert record["counts"]["passed"]
