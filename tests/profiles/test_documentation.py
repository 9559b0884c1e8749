"""docs/profiles.md and the JSON Schema say what the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.profiles.loading import load, read_profile
from gputui.profiles.preflight import check
from gputui.profiles.resolve import resolve
from gputui.profiles.schema import Checkpoints, Metrics, ParameterForm, ProfileForm, Requires, json_schema
from gputui.runs.command import build_launch
from gputui.runs.launchers.base import Placement
from gputui.runs.spec import ROLE_NAMES
from gputui.yaml_forms.problems import ProfileError

PAGE = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text("utf-8")
FIRST_CELLS = set(re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE))
KEYS = [
    *ProfileForm.model_fields,
    *(f"requires.{key}" for key in Requires.model_fields),
    *(f"metrics.{key}" for key in Metrics.model_fields),
    *(f"checkpoints.{key}" for key in Checkpoints.model_fields),
    *(f"params.*.{key}" for key in ParameterForm.model_fields),
]


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_documented(key: str) -> None:
    assert key in FIRST_CELLS


def test_every_documented_key_is_there() -> None:
    gpus = {"gpus:", "2", "all", "[0, 3]", "[3]", "GPU-3fd2…", "0"}
    assert FIRST_CELLS - set(KEYS) - set(ROLE_NAMES) == gpus


def test_every_role_and_its_names_are_documented() -> None:
    for role, names in ROLE_NAMES.items():
        assert f"| `{role}` | {', '.join(f'`{name}`' for name in names)} |" in PAGE


@pytest.mark.parametrize(
    ("key", "default"),
    [("launcher", "torchrun"), ("nproc", "gpus"), ("visible", "uuid"), ("grace", "30"), ("alerts", "standard")],
)
def test_documented_defaults(key: str, default: str) -> None:
    assert f"| `{key}` | `{default}` |" in PAGE
    actual = ProfileForm.model_fields[key].default
    assert (f"{actual:g}" if isinstance(actual, float) else actual) == default


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_is_a_valid_profile(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "x.yaml").write_text(text)
    spec = resolve(load(tmp_path / "x.yaml"), gpus_override="0")
    results = check(spec, state=tmp_path)
    failed = {result.name for result in results if result.status == "fail"}
    assert failed <= {"interpreter"}, "the first example's own environment is not here"


def test_the_mistakes_shown_are_those_said() -> None:
    lines = ["name: x", "script: a.py", "", "launcher: torchrn", "params:", "  lr: 1", "", "", "  lr: 2", ""]
    text = "\n".join([*lines, "checkpoints:", "  patern: a", "  pattern: b"])
    with pytest.raises(ProfileError) as caught:
        read_profile(text, Path("profiles/x.yaml"))
    assert f"```\n{caught.value}\n```" in PAGE


def test_the_names_of_the_checks(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("")
    (tmp_path / "x.yaml").write_text("module: trainer")
    section = PAGE.split("## What `gputui check` checks")[1].split("\n## ")[0]
    for result in check(resolve(load(tmp_path / "x.yaml"), gpus_override="0"), state=tmp_path):
        assert f"`{result.name}`" in section


def test_the_environment_that_gputui_sets_is_documented_and_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("script: a.py\ngpus: 0")
    launch = build_launch(
        resolve(load(tmp_path / "x.yaml")), run_id="r", run_dir="/r", attempt=1, params={},
        placement=Placement.here((), 1, 1), checkpoint="/c",
    )  # fmt: skip
    changeable = {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}
    for name in launch.env:
        assert name in PAGE
        text = f"script: a.py\nenv: {{{name}: x}}"
        if name in changeable:
            read_profile(text, Path("x.yaml"))
        else:
            with pytest.raises(ProfileError, match="set by gputui itself"):
                read_profile(text, Path("x.yaml"))


class TestSchema:
    def test_it_is_json_and_knows_every_key(self) -> None:
        schema = json.loads(json.dumps(json_schema()))
        assert set(schema["properties"]) == set(ProfileForm.model_fields)
        assert schema["additionalProperties"] is False
        assert schema["$schema"].startswith("https://json-schema.org/")

    def test_every_key_is_described(self) -> None:
        for name, key in json_schema()["properties"].items():
            assert key.get("description"), name

    def test_references_lead_somewhere(self) -> None:
        schema = json_schema()
        for reference in _values_of("$ref", schema):
            assert reference.removeprefix("#/$defs/") in schema["$defs"]

    def test_what_it_says_of_sizes_is_what_is_read(self) -> None:
        (pattern,) = set(_values_of("pattern", json_schema()["$defs"]["Requires"]))
        for text in ("10GiB", "1.5 GB", "500MB", "7b", "1 TiB"):
            assert re.search(pattern, text)
            read_profile(f"script: a\nrequires: {{disk: {text}}}", Path("x.yaml"))
        for text in ("10", "GiB", "10 XB", "-1GiB", "1e3MB"):
            assert not re.search(pattern, text)
            with pytest.raises(ProfileError):
                read_profile(f"script: a\nrequires: {{disk: '{text}'}}", Path("x.yaml"))


def _values_of(key: str, node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get(key), str):
            yield node[key]
        for value in node.values():
            yield from _values_of(key, value)
    elif isinstance(node, list):
        for value in node:
            yield from _values_of(key, value)


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("gputui.profiles.params, gputui.profiles.devices, gputui.profiles.preflight, gputui.profiles.describe",
         {"pydantic", "yaml", "textual", "rich", "torch", "click", "psutil"}),
        ("gputui.profiles.loading, gputui.profiles.resolve", {"textual", "rich", "torch", "numpy", "click", "sqlite3"}),
        ("gputui.runs.redaction", {"pydantic", "yaml"}),
    ],
)  # fmt: skip
def test_what_comes_along(modules: str, forbidden: set[str]) -> None:
    code = f"import {modules}, sys; print(' '.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert not forbidden & set(output.split())
