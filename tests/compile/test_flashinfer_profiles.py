"""Which modules a build takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.compile.flashinfer import profiles
from sm120_wheels.errors import RecipeInvalidError, SettingError, UnknownComponentError

MODULES = [
    "norm",
    "silu_and_mul",
    "gelu_and_mul",
    "rope",
    "batch_prefill_with_kv_cache_a",
    "batch_prefill_with_kv_cache_a_token_head_sf_b",
    "xqa_1",
    "xqa_2",
]


def taken(profile: str | None, *modules: str) -> list[str]:
    choice = profiles.choose(profiles.load_profiles(), profile=profile, modules=modules)
    return [module for module in MODULES if choice.takes(module)]


def test_minimal_is_the_seven_groups_of_the_default_profile() -> None:
    known = profiles.load_profiles()
    assert known.default == "minimal"
    assert known.profiles["minimal"].modules == (
        "norm",
        "activation",
        "page",
        "rope",
        "sampling",
        "topk",
        "cascade",
    )
    assert taken(None) == taken("minimal") == ["norm", "silu_and_mul", "gelu_and_mul", "rope"]


def test_full_takes_everything() -> None:
    assert taken("full") == MODULES


def test_an_exclamation_mark_takes_matches_out_again() -> None:
    assert "batch_prefill_with_kv_cache_a" in taken("sglang")
    assert "batch_prefill_with_kv_cache_a_token_head_sf_b" not in taken("sglang")


def test_names_replace_the_default_profile_and_add_to_one_that_is_given() -> None:
    assert taken(None, "norm", "activation") == ["norm", "silu_and_mul", "gelu_and_mul"]
    assert taken(None, "xqa_*") == ["xqa_1", "xqa_2"]
    assert taken("minimal", "xqa_1") == ["norm", "silu_and_mul", "gelu_and_mul", "rope", "xqa_1"]


def test_what_is_left_out_is_told_with_the_profiles_reason_and_never_silently() -> None:
    choice = profiles.choose(profiles.load_profiles(), profile="sglang")
    left = {item.name: item for item in profiles.explain(choice, MODULES)}
    assert left["xqa_*"].count == 2
    assert "trtllm_mha" in left["xqa_*"].why
    assert left["topk"].count == 0
    assert "no such module for this target" in left["topk"].why
    counted = sum(item.count or 0 for item in left.values())
    assert counted + len([m for m in MODULES if choice.takes(m)]) == len(MODULES)


def test_the_rest_of_upstreams_modules_is_counted() -> None:
    choice = profiles.choose(profiles.load_profiles(), profile=None, modules=["norm"])
    assert profiles.explain(choice, MODULES) == (
        profiles.LeftOut(name="*", why="not in the chosen profile or modules", count=len(MODULES) - 1),
    )


def test_full_leaves_nothing_out() -> None:
    choice = profiles.choose(profiles.load_profiles(), profile="full")
    assert profiles.explain(choice, MODULES) == ()


def test_an_unknown_profile_is_refused_with_near_misses() -> None:
    with pytest.raises(SettingError) as caught:
        taken("minimum")
    assert caught.value.exit_code == 17
    assert "no profile 'minimum'" in str(caught.value)
    assert "did you mean minimal" in str(caught.value)


def test_an_unknown_module_is_refused_with_near_misses() -> None:
    known = profiles.load_profiles()
    choice = profiles.choose(known, profile=None, modules=["norm", "activaton"])
    with pytest.raises(UnknownComponentError) as caught:
        profiles.check_asked(choice, MODULES, groups=known.groups, target="sm_120f")
    assert caught.value.exit_code == 16
    assert "no module 'activaton' for sm_120f" in str(caught.value)
    assert "did you mean activation" in str(caught.value)


def test_the_hint_stays_short_among_hundreds_of_modules() -> None:
    known = profiles.load_profiles()
    many = [f"xqa_input_f16_page_size_{i}_head_dim_64" for i in range(400)]
    choice = profiles.choose(known, profile=None, modules=["nothing_like_it"])
    with pytest.raises(UnknownComponentError) as caught:
        profiles.check_asked(choice, many, groups=known.groups, target="sm_120f")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("edition = 2\ndefault = 'a'\n[profiles.a]\nsummary = 's'\nmodules = ['norm']\n", "edition"),
        ("edition = 1\ndefault = 'a'\n[profiles.a]\nsummary = 's'\nmodules = []\n", "profiles.a.modules"),
        ("edition = 1\ndefault = 'a'\n[profiles.a]\nsummary = 's'\nmodules = ['a b']\n", "profiles.a.modules.0"),
        ("edition = 1\ndefault = 'b'\n[profiles.a]\nsummary = 's'\nmodules = ['norm']\n", "default"),
        ("edition = \n", "profiles.toml"),
    ],
)
def test_a_broken_file_is_refused_with_file_and_key(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(RecipeInvalidError) as caught:
        profiles.load_profiles(path)
    assert caught.value.exit_code == 10
    assert where in caught.value.where
