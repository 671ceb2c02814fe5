"""Recipes: what the model and its JSON Schema accept and refuse, and errors that name file and key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sm120_wheels import recipe
from sm120_wheels.errors import RecipeInvalidError, UnknownRecipeError, UnknownVersionError
from tests.support.world import git_source, recipe_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GOOD = recipe_toml(
    sources=git_source("1" * 40),
    top='[components.extra]\nsummary = "more"\n',
    extra='components = ["extra"]\n',
)
VALIDATOR = jsonschema.Draft202012Validator(recipe.json_schema())


def put(tmp_path: Path, text: str, name: str = "demo") -> Path:
    file = tmp_path / name / "recipe.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def raw(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(recipe.json_schema())


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_of_the_project_is_valid_by_model_and_schema(name: str) -> None:
    from sm120_wheels import paths

    assert recipe.load(name).name == name
    VALIDATOR.validate(raw((paths.recipes_root() / name / "recipe.toml").read_text(encoding="utf-8")))


def test_a_small_recipe_is_read(tmp_path: Path) -> None:
    put(tmp_path, GOOD)
    found = recipe.load("demo", tmp_path)
    assert found.versions["1.0"].sources["demo"].pin == "1" * 40
    VALIDATOR.validate(raw(GOOD))


#: Edits that both the model and the schema must refuse: old text, new text, key in the message.
BOTH = [
    ('main = "demo"', 'main = "demo"\nmian = "demo"', "versions.1.0.mian"),
    ('licence = "Apache-2.0"', "licence = 3", "licence"),
    ('summary = "a package for tests"\n', "", "summary"),
    ('backend = "scikit-build-core"', 'backend = "make"', "backend"),
    ("1" * 40, "1" * 39, "versions.1.0.sources.demo.commit"),
    ("1" * 40, "main", "versions.1.0.sources.demo.commit"),
    ("https://example.org/up/demo", "http://example.org/up/demo", "versions.1.0.sources.demo.git"),
    ('cuda = "13.0"', 'cuda = "13"', "versions.1.0.pairings.0.cuda"),
    ('python = ["3.10", ', 'python = ["310", ', "versions.1.0.pairings.0.python.0"),
    ('tools = ["build-cmake3"]', "tools = []", "versions.1.0.tools"),
    ('name = "demo"', 'name = "De mo"', "name"),
]


@pytest.mark.parametrize(("old", "new", "key"), BOTH)
def test_model_and_schema_refuse_the_same(tmp_path: Path, old: str, new: str, key: str) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    file = put(tmp_path, text)
    with pytest.raises(RecipeInvalidError) as caught:
        recipe.read(file)
    assert caught.value.where == f"{file}, key {key}"
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(raw(text))


#: Rules between keys, which only the model knows.
MODEL = [
    ('main = "demo"', 'main = "domo"', "not among the sources"),
    ('default_version = "1.0"', 'default_version = "2.0"', "not among versions"),
    ('default = "12.0a"', 'default = "12.1a"', "not among supported"),
    ('"12.0" = "needs FP4"', '"12.0a" = "needs FP4"', "both supported and refused"),
    ('supported = ["12.0a"', 'supported = ["12.0z", "12.0a"', "unknown GPU architecture"),
    ('components = ["extra"]', 'components = ["extras"]', "unknown component 'extras'"),
    (f'commit = "{"1" * 40}"\n', "", "git needs commit"),
    ('licence = "MIT"', 'licence = "MIT"\nfolder = "x"', "exactly one of git, archive, pypi, folder"),
    ('licence = "MIT"', 'licence = "MIT"\nsha256 = "' + "0" * 64 + '"', "sha256 goes with"),
    ('licence = "MIT"', 'licence = "MIT"\npaths = ["../x"]', "leads outside"),
    ('licence = "MIT"', 'licence = "MIT"\ncomponents = ["extra"]', "cannot depend on a component"),
    ('torch = "2.11.0"', 'torch = "two"', "not a PEP 440 version"),
    ('main = "demo"', 'main = "demo"\ntorch_requires = "=={trch}"', "torch_requires"),
    ('main = "demo"', 'main = "demo"\nlean_headers = "torhc"', "no lean headers 'torhc' (did you mean torch?"),
    ('main = "demo"', 'main = "demo"\nlean_headers = "torhc"', "versions.1.0.lean_headers"),
    ('main = "demo"', 'main = "demo"\ntorch_requires = "like {torch}"', "torch_requires"),
]


@pytest.mark.parametrize(("old", "new", "why"), MODEL)
def test_rules_between_keys_are_told(tmp_path: Path, old: str, new: str, why: str) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(RecipeInvalidError) as caught:
        recipe.read(put(tmp_path, text))
    assert why in caught.value.why + caught.value.where


def test_a_misspelt_key_is_answered_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalidError) as caught:
        recipe.read(put(tmp_path, GOOD.replace('licence = "MIT"', 'license = "MIT"')))
    assert "did you mean licence" in caught.value.hint


def test_two_pairings_of_the_same_cuda_and_torch_are_refused(tmp_path: Path) -> None:
    pair = '{ cuda = "13.0", torch = "2.11.0", python = ["3.10"] }'
    with pytest.raises(RecipeInvalidError) as caught:
        recipe.read(put(tmp_path, recipe_toml(sources=git_source("1" * 40), pairings=f"{pair}, {pair}")))
    assert "same cuda and torch" in caught.value.why


@pytest.mark.parametrize("content", [b"\xff\xfe", b"edition = ", b"edition = 1\nedition = 1"])
def test_what_is_no_toml_is_told(tmp_path: Path, content: bytes) -> None:
    file = put(tmp_path, "")
    file.write_bytes(content)
    with pytest.raises(RecipeInvalidError, match="not a TOML file"):
        recipe.read(file)


@pytest.mark.parametrize("edition", ["", "edition = 2\n", "edition = 0\n", "edition = '1'\n"])
def test_another_edition_is_refused_by_name(tmp_path: Path, edition: str) -> None:
    with pytest.raises(RecipeInvalidError, match="recipe of edition"):
        recipe.read(put(tmp_path, GOOD.replace("edition = 1\n", edition)))


def test_a_folder_of_another_name_is_refused(tmp_path: Path) -> None:
    put(tmp_path, GOOD, "other")
    with pytest.raises(RecipeInvalidError, match="must be that of its folder"):
        recipe.load("other", tmp_path)


@pytest.mark.parametrize("name", ["", "..", "../demo", "demo/", "dem", "demo\n", "/etc"])
def test_a_name_that_is_no_recipe_is_unknown(tmp_path: Path, name: str) -> None:
    put(tmp_path, GOOD)
    with pytest.raises(UnknownRecipeError) as caught:
        recipe.load(name, tmp_path)
    assert "demo" in caught.value.hint


def test_underscores_and_capitals_find_the_recipe(tmp_path: Path) -> None:
    put(tmp_path, GOOD.replace('name = "demo"', 'name = "de-mo"', 1), "de-mo")
    assert recipe.load("De_mo", tmp_path).name == "de-mo"


def test_versions_are_compared_as_versions(tmp_path: Path) -> None:
    put(tmp_path, GOOD)
    found = recipe.load("demo", tmp_path)
    assert found.version("1.0.0")[0] == "1.0"
    assert found.version(None)[0] == "1.0"
    with pytest.raises(UnknownVersionError):
        found.version("1.1")
    with pytest.raises(UnknownVersionError):
        found.version("")
