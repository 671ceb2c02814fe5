"""The references against loops that follow the definitions one number at a time. Needs torch; no GPU."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sm120_wheels.prove.smoke

torch: Any = pytest.importorskip("torch", reason="not run: torch is not installed here")
PAYLOAD = Path(sm120_wheels.prove.smoke.__file__).parent / "payload"


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(PAYLOAD))
    return importlib.import_module(f"sm120_smoke.references.{request.param}")


def uses(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("reference", [name], indirect=True)


@uses("norm")
def test_a_rotation_turns_each_pair_by_its_angle(reference: ModuleType) -> None:
    x, angle = torch.randn(8, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    for neox, pairs in ((True, [(i, i + 4) for i in range(4)]), (False, [(2 * i, 2 * i + 1) for i in range(4)])):
        turned = reference.rotate(x, angle.cos(), angle.sin(), neox=neox)
        for i, (first, second) in enumerate(pairs):
            number = complex(x[first], x[second]) * complex(math.cos(angle[i]), math.sin(angle[i]))
            assert complex(turned[first], turned[second]) == pytest.approx(number)


@uses("norm")
def test_a_norm_divides_by_the_root_of_the_mean_square(reference: ModuleType) -> None:
    x, weight = torch.tensor([[3.0, -4.0]]), torch.tensor([1.0, 2.0])
    root = math.sqrt((9 + 16) / 2 + 0.5)
    assert reference.rmsnorm(x, weight, 0.5).tolist()[0] == pytest.approx([3 / root, -8 / root])
    assert reference.rmsnorm(x, weight, 0.5, offset=1.0).tolist()[0] == pytest.approx([6 / root, -12 / root])


@uses("moe")
@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_experts_are_found_again_in_an_operators_order(reference: ModuleType, seed: int) -> None:
    torch.manual_seed(seed)
    experts, block, room = 5, 4, 40
    ids = torch.randint(0, experts, (9, 2), dtype=torch.int32)
    padded, owners, slots = reference.align(ids, block, experts, room)
    flat = ids.flatten().tolist()
    for place, token in enumerate(slots.tolist()):
        if token < 18:
            assert owners[place // block] == flat[token]
    assert sorted(slots.tolist())[:18] == list(range(18))
    assert int(padded) == sum(-(-flat.count(e) // block) * block for e in range(experts))
    # Another order inside an expert is as good; a token in another expert's block is not.
    mixed = slots.clone()
    first = [i for i, token in enumerate(slots.tolist()) if token < 18 and owners[i // block] == flat[slots[0]]]
    mixed[first] = slots[first].flip(0)
    same = reference.aligned_blocks(mixed, owners, padded, ids, block, experts)
    assert torch.equal(same[2], slots)
    last = max(i for i, token in enumerate(slots.tolist()) if token < 18)
    mixed[0], mixed[last] = slots[last], slots[0]
    assert not torch.equal(reference.aligned_blocks(mixed, owners, padded, ids, block, experts)[2], slots)


@uses("moe")
def test_of_equal_scores_the_lower_expert_is_chosen(reference: ModuleType) -> None:
    assert reference.best(torch.tensor([0.5, 0.9, 0.5, 0.9]), 3).tolist() == [1, 3, 0]


@uses("sampling")
def test_top_p_keeps_the_fewest_that_reach_it_and_their_equals(reference: ModuleType) -> None:
    probabilities = torch.tensor([[0.25, 0.5, 0.125, 0.125]])
    assert reference.top_p_renormalize(probabilities, 0.5).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert reference.top_p_renormalize(probabilities, 0.8).tolist() == probabilities.tolist()
    assert reference.top_k_renormalize(probabilities, 2).tolist()[0] == pytest.approx([1 / 3, 2 / 3, 0, 0])


@uses("sampling")
def test_a_mask_bit_of_zero_forbids_its_token(reference: ModuleType) -> None:
    logits = torch.ones(2, 40)
    mask = torch.tensor([[-1, 0b01], [0b101, 0]], dtype=torch.int32)
    out = reference.masked_logits(logits, mask, None)
    assert [i for i in range(40) if out[0, i] == 1] == list(range(33))
    assert [i for i in range(40) if out[1, i] == 1] == [0, 2]
    assert reference.masked_logits(logits, mask, torch.tensor([1]))[0].tolist() == [1.0] * 40


@uses("quant")
def test_a_scale_is_rounded_up_to_a_power_of_two(reference: ModuleType) -> None:
    power, value = reference.up_to_power_of_two(torch.tensor([0.24, 0.25, 0.2501, 3.0]))
    assert power.tolist() == [-2, -2, -1, 2]
    assert value.tolist() == [0.25, 0.25, 0.5, 4.0]


@uses("quant")
def test_awq_words_hold_even_columns_first(reference: ModuleType) -> None:
    columns = list(range(8))
    word = sum(value << (4 * place) for value, place in zip(columns, (0, 4, 1, 5, 2, 6, 3, 7), strict=True))
    word -= 2**32 if word >= 2**31 else 0
    out = reference.awq(
        torch.tensor([[word]], dtype=torch.int32), torch.ones(1, 8), torch.zeros(1, 1, dtype=torch.int32)
    )
    assert out.tolist() == [[float(value) for value in columns]]


@uses("gptq")
def test_gptq_words_are_taken_apart_and_joined(reference: ModuleType) -> None:
    words = torch.randint(-(2**31), 2**31 - 1, (4, 6), dtype=torch.int64).int()
    for bits in (2, 4, 8):
        assert torch.equal(reference.join(reference.fields(words, bits), bits), words)
    order = torch.arange(32).flip(0)
    assert torch.equal(reference.rows_of(reference.reorder(words, order), 4), reference.rows_of(words, 4).flip(0))


@uses("dsv4")
def test_the_hadamard_transform_signs_by_common_bits(reference: ModuleType) -> None:
    x = torch.randn(128, dtype=torch.float64)
    out = reference.hadamard(x)
    for i in (0, 1, 77, 127):
        wanted = sum(float(x[j]) * (-1) ** bin(i & j).count("1") for j in range(128)) / math.sqrt(128)
        assert float(out[i]) == pytest.approx(wanted)


@uses("attention")
@pytest.mark.parametrize("causal", [True, False])
def test_vertical_and_slash_columns_are_those_of_each_row(reference: ModuleType, causal: bool) -> None:
    vertical = torch.tensor([[[1, 70, 130]]], dtype=torch.int32)
    slash = torch.tensor([[[100, 7, 0]]], dtype=torch.int32)
    length, rows, width = 140, 3, 300
    counts = [torch.tensor([3]), torch.tensor([3])]
    must, may = reference.wanted(vertical, slash, torch.tensor([length]), rows, 64, counts, width, causal=causal)
    for block in range(rows):
        wanted = set()
        for row in range(64 * block, min(64 * (block + 1), length)):
            wanted |= {row - s if causal else length + row - s for s in (100, 7, 0)}
        end = min(64 * (block + 1), length) if causal else length
        wanted = {c for c in wanted if 0 <= c < length} | {c for c in (1, 70, 130) if c < end}
        assert set(must[0, 0, block].nonzero().flatten().tolist()) == wanted
    assert not (must & ~may).any()


@uses("mamba")
def test_a_causal_convolution_sees_the_state_before_the_sequence(reference: ModuleType) -> None:
    x, state = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 20.0]])
    weight = torch.tensor([[100.0, 10.0, 1.0]])
    assert reference.convolve(x, state, weight, None, silu=False).tolist() == [[1201.0, 2012.0, 123.0]]
    assert reference.last(x[:, :1], state).tolist() == [[20.0, 1.0]]


@uses("gguf")
@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q8_0"])
def test_blocks_of_gguf_hold_low_halves_first(reference: ModuleType, name: str) -> None:
    form = reference.FORMATS[name]
    torch.manual_seed(0)
    data = torch.randint(0, 256, (1, form.size), dtype=torch.uint8)
    for place, value in ((form.scale, 0.5), (form.least, -1.25)):
        if place >= 0:
            data[0, place : place + 2] = torch.tensor([value], dtype=torch.float16).view(torch.uint8)
    b = data[0].tolist()
    got = reference.dequantize(form, data)[0].tolist()
    for i in range(32):
        half, byte = divmod(i, 16)
        if name == "q8_0":
            wanted = 0.5 * (b[2 + i] - 256 if b[2 + i] > 127 else b[2 + i])
        elif name == "q4_0":
            wanted = 0.5 * (((b[2 + byte] >> (4 * half)) & 15) - 8)
        else:
            fifth = (int.from_bytes(bytes(b[4:8]), "little") >> i) & 1
            wanted = 0.5 * (((b[8 + byte] >> (4 * half)) & 15) + 16 * fifth) - 1.25
        assert got[i] == wanted


#: Magnitudes of the e2m1 codes 0 to 7 (OCP Microscaling Formats 1.0).
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@uses("flashinfer_math")
def test_an_nvfp4_code_is_the_nearest_one_with_the_sign_in_its_high_bit(reference: ModuleType) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    x[0, :16] = 0
    packed, scales = reference.nvfp4_blocks(x, 0.013)
    assert (packed.shape, scales.shape) == ((3, 32), (3, 4))
    for row in range(3):
        for i in range(64):
            code = (int(packed[row, i // 2]) >> 4 * (i % 2)) & 15
            value, step = float(x[row, i]), float(scales[row, i // 16]) * 0.013
            nearest = min(abs(abs(value) - each * step) for each in _E2M1)
            assert abs(abs(value) - _E2M1[code & 7] * step) <= nearest * 1.00001
            assert (code >= 8) == (value < 0)
    assert scales[0, 0] == 0
    assert set(packed[0, :8].tolist()) == {0}


@uses("flashinfer_math")
def test_half_a_step_of_nvfp4_goes_to_the_even_code(reference: ModuleType) -> None:
    halves = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    x = torch.tensor([[6.0, *halves, *[0.0] * 8]])
    packed, scales = reference.nvfp4_blocks(x, 1.0)
    codes = [code for byte in packed[0].tolist() for code in (byte & 15, byte >> 4)]
    assert float(scales[0, 0]) == 1.0
    assert codes[:8] == [7, 0, 2, 2, 4, 4, 6, 6]


@uses("gguf")
def test_iq4_xs_takes_its_scales_from_two_fields(reference: ModuleType) -> None:
    torch.manual_seed(0)
    form = reference.FORMATS["iq4_xs"]
    data = torch.randint(0, 256, (1, form.size), dtype=torch.uint8)
    data[0, :2] = torch.tensor([0.5], dtype=torch.float16).view(torch.uint8)
    block = data[0].tolist()
    expected = []
    for part in range(8):
        low = (block[4 + part // 2] >> 4 * (part % 2)) & 15
        high = ((block[2] + 256 * block[3]) >> 2 * part) & 3
        codes = block[8 + 16 * part : 24 + 16 * part]
        for code in [*(c & 15 for c in codes), *(c >> 4 for c in codes)]:
            expected.append(0.5 * (low + 16 * high - 32) * reference._IQ4[code])
    assert reference.dequantize(form, data)[0].tolist() == expected


@uses("gguf")
@pytest.mark.parametrize("name", ["iq1_m", "iq2_xxs"])
def test_the_scale_of_a_block_is_put_where_its_format_has_it(reference: ModuleType, name: str) -> None:
    form = reference.CODE_BOOKS[name]
    data = torch.randint(0, 256, (2, 3 * form.size), dtype=torch.uint8)
    kept = data.clone()
    reference.set_scale(form, data, torch.full((2, 3), 0.0123, dtype=torch.float16))
    block = data[1, form.size : 2 * form.size].tolist()
    bits = sum((block[49 + 2 * i] >> 4) << 4 * i for i in range(4)) if name == "iq1_m" else block[0] + 256 * block[1]
    assert bits == int(torch.tensor(0.0123, dtype=torch.float16).view(torch.int16))
    assert int((data != kept).sum()) <= 2 * 3 * (4 if name == "iq1_m" else 2)
