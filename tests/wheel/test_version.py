from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from sm120_wheels.arch import KNOWN, Arch
from sm120_wheels.index.names import read_labels
from sm120_wheels.wheel.version import cuda_major, cuda_release, is_partial, local_version

ARCHS = st.lists(st.sampled_from(sorted(KNOWN)).map(Arch.parse), min_size=1, max_size=4)
CUDAS = st.tuples(st.integers(11, 14), st.integers(0, 9))
TORCHES = st.none() | st.tuples(st.integers(2, 3), st.integers(0, 30))
UPSTREAMS = st.sampled_from(["0.4.4", "0.3.21", "1.0rc1", "0.4.4.post1", "2!1.0"])


def test_the_label_names_cuda_torch_and_architecture() -> None:
    archs = [Arch.parse("12.0a")]
    assert local_version(upstream="0.4.4", cuda="13.0", torch="2.11.0", archs=archs) == "0.4.4+cu130.torch211.sm120a"


def test_architectures_are_sorted_and_joined() -> None:
    archs = [Arch.parse("12.1a"), Arch.parse("12.0a"), Arch.parse("12.1a")]
    assert local_version(upstream="0.4.4", cuda="12.9", torch=None, archs=archs) == "0.4.4+cu129.sm120a.sm121a"


def test_a_label_of_upstreams_is_replaced() -> None:
    assert local_version(upstream="1.0+cu126", cuda="13.0", torch=None, archs=[Arch.parse("12.0")]) == "1.0+cu130.sm120"


def test_a_label_without_architecture_is_a_defect() -> None:
    with pytest.raises(ValueError, match="needs an architecture"):
        local_version(upstream="1.0", cuda="13.0", torch=None, archs=[])


@given(upstream=UPSTREAMS, cuda=CUDAS, torch=TORCHES, archs=ARCHS, partial=st.booleans())
def test_a_label_can_be_read_back(
    upstream: str, cuda: tuple[int, int], torch: tuple[int, int] | None, archs: list[Arch], partial: bool
) -> None:
    text = local_version(
        upstream=upstream,
        cuda=f"{cuda[0]}.{cuda[1]}",
        torch=f"{torch[0]}.{torch[1]}.0" if torch else None,
        archs=archs,
        partial=partial,
    )
    assert str(Version(text)) == text, "already as PEP 440 normalises it"
    assert Version(text).public == str(Version(upstream))
    labels = read_labels(text)
    assert labels.index == f"cu{cuda[0]}{cuda[1]}"
    assert labels.torch == (f"{torch[0]}.{torch[1]}" if torch else None)
    assert labels.archs == tuple(map(str, sorted(set(archs))))
    assert is_partial(text) == partial


@given(upstream=UPSTREAMS, torch=TORCHES, archs=ARCHS)
def test_a_partial_wheel_is_older_than_the_complete_one_and_newer_than_upstreams(
    upstream: str, torch: tuple[int, int] | None, archs: list[Arch]
) -> None:
    def made(partial: bool) -> Version:
        version = f"{torch[0]}.{torch[1]}" if torch else None
        return Version(local_version(upstream=upstream, cuda="13.0", torch=version, archs=archs, partial=partial))

    assert Version(upstream) < made(True) < made(False)


@pytest.mark.parametrize("other", ["0.4.4", "0.4.4+cu130", "0.4.4+sm120a", "0.4.4+cu130.torch211"])
def test_a_version_of_anybody_else_is_not_partial(other: str) -> None:
    assert not is_partial(other)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.11.0+cu130", "13.0"),
        ("0.4.4+cu129.torch211.sm120a", "12.9"),
        ("1.0+abc.cu118", "11.8"),
        ("1.0", ""),
        ("1.0+cuda13", ""),
        ("1.0+cu13", ""),
    ],
)
def test_the_label_names_the_cuda_release(version: str, release: str) -> None:
    assert cuda_release(version) == release
    assert cuda_major(version) == (int(release[:2]) if release else None)
