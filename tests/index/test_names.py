from __future__ import annotations

import pytest

from sm120_wheels.errors import PublishRefusedError, UnknownCudaError
from sm120_wheels.index.names import MAX_FILENAME, check_filename, cuda_of, label_of, read_labels

GOOD = "sglang_kernel-0.4.4+cu130.torch211.sm120a-cp310-abi3-manylinux_2_34_x86_64.whl"


def test_canonical_filename_is_accepted() -> None:
    check_filename(GOOD)


@pytest.mark.parametrize(
    ("filename", "canonical"),
    [
        ("SGLang_Kernel-0.4.4-py3-none-any.whl", "sglang_kernel-0.4.4-py3-none-any.whl"),
        ("sglang.kernel-0.4.4-py3-none-any.whl", "sglang_kernel-0.4.4-py3-none-any.whl"),
        ("sglang_kernel-0.04.4-py3-none-any.whl", "sglang_kernel-0.4.4-py3-none-any.whl"),
    ],
)
def test_other_spelling_is_refused_and_the_canonical_one_named(filename: str, canonical: str) -> None:
    with pytest.raises(PublishRefusedError) as refused:
        check_filename(filename)
    assert canonical in refused.value.hint


@pytest.mark.parametrize(
    "filename",
    [
        "sgl\N{CYRILLIC SMALL LETTER A}ng_kernel-0.4.4-py3-none-any.whl",
        "sglang_kernel-0.4.4-py3-none-any\N{ZERO WIDTH SPACE}.whl",
        "sglang_kernel-0.4.4-py3-none-<b>.whl",
        "sglang_kernel-0.4.4-py3-none-a&b.whl",
        'sglang_kernel-0.4.4-py3-none-a"b.whl',
        "sglang_kernel-0.4.4-py3-none-a%2e.whl",
    ],
)
def test_look_alikes_and_markup_are_refused_by_code_point(filename: str) -> None:
    with pytest.raises(PublishRefusedError, match="characters that no wheel's name needs") as refused:
        check_filename(filename)
    assert "U+" in refused.value.why


def test_filename_of_300_characters_is_refused() -> None:
    filename = f"{'a' * 300}-1.0-py3-none-any.whl"
    with pytest.raises(PublishRefusedError, match="too long") as refused:
        check_filename(filename)
    assert f"{len(filename)} bytes" in refused.value.why
    assert str(MAX_FILENAME) in refused.value.why


def test_labels_come_from_the_local_version() -> None:
    labels = read_labels("0.4.4+cu130.torch211.sm120a.sm121a")
    assert (labels.index, labels.torch, labels.archs) == ("cu130", "2.11", ("12.0a", "12.1a"))


@pytest.mark.parametrize("version", ["0.4.4", "0.4.4+abc", "0.4.4+sm999x", "1!0.4.4+cuda13"])
def test_unknown_segments_mean_nothing(version: str) -> None:
    labels = read_labels(version)
    assert (labels.index, labels.torch, labels.archs) == (None, None, ())


@pytest.mark.parametrize(
    ("cuda", "label"), [("13.0", "cu130"), ("12.8", "cu128"), ("cu129", "cu129"), ("13.0.1", "cu130")]
)
def test_cuda_version_and_label_translate(cuda: str, label: str) -> None:
    assert label_of(cuda) == label
    assert cuda_of(label) == f"{label[2:-1]}.{label[-1]}"


@pytest.mark.parametrize("text", ["13", "cuda13", "../etc", "", "cu13x"])
def test_other_labels_are_refused(text: str) -> None:
    with pytest.raises(UnknownCudaError):
        label_of(text)
