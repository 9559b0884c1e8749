"""docs/recipes.md: each recipe serves a program in its form; what holds of it is played by `make test-long`."""

from __future__ import annotations

import re

import pytest

from gputui.profiles.preflight import quick_checks
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import resolve
from tests.foreign.matrix import PAGE, PLAYED, ROWS, can_be_tried, prepare
from tests.machines import Machine
from tests.tables import table

RECIPES = re.findall(r"^# recipe: (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)


@table("name", ROWS)
def test_every_recipe_is_a_profile_without_a_flaw(machine: Machine, name: str) -> None:
    spec = resolve(load(machine.folder / prepare(machine, name)))
    results = quick_checks(spec, state=machine.workspace.state)
    assert spec.metrics
    assert spec.checkpoints is not None
    # These look for their own checkpoint, or at $GPUTUI_CHECKPOINT, which no check can know.
    expected = {"disk"} if spec.checkpoints.resume else {"disk", "resume"}
    assert [result for result in results if result.status in ("fail", "warn") and result.name not in expected] == []


def test_every_recipe_is_tried() -> None:
    assert {row.recipe for row in ROWS.values()} == set(RECIPES)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", PLAYED)
@pytest.mark.parametrize("name", ROWS)
def test_what_holds(machine: Machine, name: str, part: str) -> None:
    if not can_be_tried(name):
        pytest.skip(f"{ROWS[name].needs} is not installed")
    check_part = PLAYED[part]
    check_part(machine, name)
