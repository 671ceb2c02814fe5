from __future__ import annotations

import hashlib
import multiprocessing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sm120_wheels.errors import BusyError, PublishRefusedError, WheelInvalidError
from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.model import Wheel
from sm120_wheels.index.publish import Options, publish
from sm120_wheels.index.store import writing
from sm120_wheels.index.verify import verify
from tests.index.makewheel import beside, make_wheel


def only(root: Path, project: str) -> Wheel:
    found = Snapshot.current(root).project(project)
    assert found is not None
    (wheel,) = found.wheels
    return wheel


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_published_wheel_is_in_its_cuda_index_and_in_the_one_of_all(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist)
    result = publish(root, [wheel])
    assert [line.action for line in result.lines] == ["published"]
    assert (root / "cu130/sm120-selftest/index.html").read_text().count(wheel.name) == 1
    assert (root / "simple/sm120-selftest/index.html").read_text().count(wheel.name) == 1
    assert not (root / "cu128").exists()
    record = only(root, "sm120-selftest")
    assert (root / record.path).read_bytes() == wheel.read_bytes()
    assert (root / f"{record.path}.metadata").read_text().startswith("Metadata-Version")
    assert (record.cuda, record.torch, record.archs) == ("13.0", "2.11", ("12.0a",))
    assert verify(root).findings == ()


def test_same_bytes_again_change_nothing_at_all(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist)
    first = publish(root, [wheel])
    before = tree(root)
    again = publish(root, [wheel])
    assert [line.action for line in again.lines] == ["unchanged"]
    assert again.generation == first.generation
    assert tree(root) == before


def test_other_bytes_under_a_published_name_are_refused_naming_both_hashes(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist)
    publish(root, [wheel])
    old = hashlib.sha256(wheel.read_bytes()).hexdigest()
    other = make_wheel(dist, content=b"answer = 43\n")
    new = hashlib.sha256(other.read_bytes()).hexdigest()
    before = tree(root)
    with pytest.raises(PublishRefusedError, match="published before with other bytes") as refused:
        publish(root, [other])
    assert old in refused.value.why
    assert new in refused.value.why
    assert tree(root) == before


def test_same_bytes_under_another_name_are_refused(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, version="1.0+cu130", tag="py3-none-any")
    publish(root, [wheel], options=Options(allow=frozenset({"audit"})))
    twin = wheel.with_name("sm120_selftest-1.0+cu130-1-py3-none-any.whl")
    twin.write_bytes(wheel.read_bytes())
    with pytest.raises(PublishRefusedError, match="published under another name"):
        publish(root, [twin], options=Options(allow=frozenset({"audit", "no-audit"})))


def test_a_set_is_published_whole_or_not_at_all(root: Path, dist: Path) -> None:
    good = make_wheel(dist, "flashinfer-python", "0.7.4", tag="py3-none-any", audit={"12.0": "no-cuda"})
    bad = make_wheel(dist, "flashinfer-jit-cache", "0.7.4+cu130.sm120f", audit={"12.0": "runs", "12.1": "part"})
    with pytest.raises(PublishRefusedError, match="flashinfer_jit_cache"):
        publish(root, [good, bad])
    assert Snapshot.current(root).number == 0
    assert not list(root.glob("files/*/*"))


def test_wheel_that_names_no_cuda_joins_the_indexes_of_its_set(root: Path, dist: Path) -> None:
    pure = make_wheel(dist, "flashinfer-python", "0.7.4", tag="py3-none-any", audit={"12.0": "no-cuda"})
    with pytest.raises(PublishRefusedError, match="names no CUDA version") as refused:
        publish(root, [pure])
    assert "--cuda cu130" in refused.value.hint
    publish(root, [pure, make_wheel(dist)])
    assert only(root, "flashinfer-python").indexes == ("cu130",)
    later = publish(root, [pure], options=Options(cuda=("12.9",)))
    assert [line.action for line in later.lines] == ["updated"]
    assert only(root, "flashinfer-python").indexes == ("cu129", "cu130")
    assert (root / "cu129/flashinfer-python/index.html").is_file()


def test_evidence_is_published_beside_the_wheel(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, build={"cuda": "13.0", "archs": ["12.0a"], "identifier": "id", "torch": "2.11.0"})
    beside(wheel, "smoke", state="passed", gpu="RTX 5090", driver="580")
    publish(root, [wheel])
    record = only(root, "sm120-selftest")
    assert [e.kind for e in record.evidence] == ["audit", "smoke", "sbom", "build"]
    for evidence in record.evidence:
        content = (root / record.folder / evidence.filename).read_bytes()
        assert hashlib.sha256(content).hexdigest() == evidence.sha256


def test_later_evidence_is_added_and_bad_news_is_not_turned_away(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist)
    publish(root, [wheel])
    beside(wheel, "smoke", state="failed", gpu="RTX 5090", reason="all zeros")
    result = publish(root, [wheel])
    (line,) = result.lines
    assert line.action == "updated"
    assert "all zeros" in line.notes[0]
    assert "sm120 index yank" in line.notes[0]
    assert "failed on RTX 5090" in (root / "index.html").read_text()
    assert verify(root).findings == ()


def test_wheel_without_audit_is_audited_when_published(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, audit={})
    asked: list[str] = []

    def audit(path: Path, sha256: str) -> bytes:
        asked.append(path.name)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256
        return b'{"wheel_sha256": "%s", "verdicts": {"12.0": "runs"}}' % sha256.encode()

    publish(root, [wheel], audit=audit)
    assert asked == [wheel.name]
    assert only(root, "sm120-selftest").latest("audit") is not None


def test_wheel_that_cannot_be_audited_is_refused_unless_named(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, audit={})
    with pytest.raises(PublishRefusedError, match="was not published") as refused:
        publish(root, [wheel], audit=lambda path, sha256: None)
    assert "[no-audit]" in refused.value.why
    publish(root, [wheel], audit=lambda path, sha256: None, options=Options(allow=frozenset({"no-audit"})))
    assert only(root, "sm120-selftest").exceptions == ("no-audit",)
    assert "no-audit" in (root / "index.html").read_text()


def test_upload_time_is_the_first_publish(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist)
    publish(root, [wheel], now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    beside(wheel, "smoke", state="passed")
    publish(root, [wheel], now=lambda: datetime(2027, 1, 1, tzinfo=timezone.utc))
    assert only(root, "sm120-selftest").uploaded == "2026-01-02T03:04:05Z"


def test_damaged_wheel_is_refused_and_leaves_nothing(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, content=b"answer = 42  # padding padding\n")
    wheel.write_bytes(wheel.read_bytes().replace(b"padding padding", b"padding PADDING"))
    with pytest.raises(WheelInvalidError):
        publish(root, [wheel], options=Options(allow=frozenset({"no-audit"})))
    assert not list(root.glob("files/*/*"))


def test_renamed_wheel_is_refused(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, version="0.1.0", audit={})
    renamed = wheel.rename(wheel.with_name(wheel.name.replace("0.1.0", "0.1.0+cu130")))
    with pytest.raises(WheelInvalidError, match="another version inside than outside"):
        publish(root, [renamed])


def test_wheel_given_twice_is_refused(root: Path, dist: Path, tmp_path: Path) -> None:
    wheel, other = make_wheel(dist), make_wheel(tmp_path / "elsewhere")
    with pytest.raises(PublishRefusedError, match="given twice"):
        publish(root, [wheel, other])


def test_folder_of_files_left_by_hand_is_not_trusted(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    stray = root / "files" / digest[:2] / digest
    stray.mkdir(parents=True)
    (stray / wheel.name).write_bytes(b"something else")
    publish(root, [wheel])
    assert verify(root).findings == ()


def test_second_publisher_gives_up_when_its_time_is_over(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist)
    with writing(root), pytest.raises(BusyError, match="the index is in use by another process"):
        publish(root, [wheel], options=Options(timeout_s=0.1))


def _publish(root: Path, wheel: Path) -> None:
    publish(root, [wheel])


def test_publishers_at_once_wait_for_each_other(root: Path, tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / str(i), f"tiny-{i}", "1.0+cu130.sm120a") for i in range(6)]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_publish, args=(root, w)) for w in wheels]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * 6
    assert Snapshot.current(root).number == 6
    assert len(Snapshot.current(root).front().packages) == 6
    assert verify(root).findings == ()


def test_wheel_without_gpu_code_that_claims_some_fails_the_live_audit(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, audit={})
    with pytest.raises(PublishRefusedError) as refused:
        publish(root, [wheel])
    assert "12.0: no-cuda" in refused.value.why


def test_the_live_audit_judges_a_wheel_for_the_gpu_that_it_names(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, version="0.1.0+cu130.torch211.sm90a", audit={})
    with pytest.raises(PublishRefusedError) as refused:
        publish(root, [wheel])
    assert "built for 9.0a, but the audit says 9.0: no-cuda" in refused.value.why


def test_pure_wheel_passes_the_live_audit(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, "flashinfer-python", "0.7.4", tag="py3-none-any", audit={})
    publish(root, [wheel], options=Options(cuda=("cu130",)))
    audit = only(root, "flashinfer-python").latest("audit")
    assert audit is not None
    assert audit.verdicts == {"12.0": "no-cuda", "12.1": "no-cuda"}


def test_audit_with_failures_is_refused_whatever_its_verdicts(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, audit={})
    beside(wheel, "audit", verdicts={"12.0": "runs"}, failures=[{"what": "a.so needs CUDA 12", "why": ""}])
    with pytest.raises(PublishRefusedError) as refused:
        publish(root, [wheel])
    assert "a.so needs CUDA 12" in refused.value.why


def test_label_that_says_partial_is_believed_without_a_build_record(root: Path, dist: Path) -> None:
    wheel = make_wheel(dist, version="0.1.0+cu130.torch211.partial.sm120a")
    with pytest.raises(PublishRefusedError) as refused:
        publish(root, [wheel])
    assert "[partial]" in refused.value.why
    publish(root, [wheel], options=Options(allow=frozenset({"partial"})))
    assert only(root, "sm120-selftest").without == ("unnamed components",)
