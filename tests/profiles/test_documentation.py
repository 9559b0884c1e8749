"""docs/profiles.md and the JSON Schema say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.preflight import check
from gputui.profiles.profile_file import load, read_profile
from gputui.profiles.resolve import GpuChoice, resolve
from gputui.profiles.schema import ProfileForm, json_schema
from gputui.reports.export.formats import FORMATS
from gputui.runs.command import build_launch
from gputui.runs.launchers.base import Placement
from tests.tables import table

PAGE = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text("utf-8")


@table("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_is_a_valid_profile(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "x.yaml").write_text(text)
    spec = resolve(load(tmp_path / "x.yaml"), GpuChoice(override="0"))
    results = check(spec, state=tmp_path)
    failed = {result.name for result in results if result.status == "fail"}
    assert failed <= {"interpreter"}, "the first example's own environment is not here"


def test_the_environment_that_gputui_sets_is_documented_and_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("script: a.py\ngpus: 0")
    launch = build_launch(
        resolve(load(tmp_path / "x.yaml")), run_dir="/r", attempt=1, params={},
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


def test_the_json_schema_knows_every_key() -> None:
    text = json.dumps(json_schema())
    assert "Attributes" not in text
    schema = json.loads(text)
    assert set(schema["properties"]) == set(ProfileForm.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_every_sink_has_its_row() -> None:
    rows = {
        name: (place, delay, needs)
        for name, place, delay, needs in re.findall(
            r"^`(\w+)` \| [^|]+ \| ([^|]+) \| (\d+ \w+) \|(.*)$", PAGE, re.MULTILINE
        )
    }
    assert set(rows) == set(FORMATS), "a sink of gputui/reports/export/formats.py has no row in docs/profiles.md"
    for name, facts in FORMATS.items():
        place, delay, needs = rows[name]
        assert place == f"`{facts.place}`" or facts.place is None
        expected = "1 min" if facts.seconds == 60 else f"{facts.seconds:g} s"
        assert delay == expected
        assert needs.strip() == (f"`gputui[{facts.extra}]`" if facts.extra else "")
