"""The documentation says what the data say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gputui.profiles.loading import load
from gputui.profiles.recovery_form import RecoveryForm
from gputui.recovery.actions import ACTIONS
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import POLICIES, Ladder, policy_from

DOCS = Path(__file__).parents[2] / "docs" / "recovery.md"
TEXT = DOCS.read_text(encoding="utf-8")


def rows(first_column: str) -> dict[str, list[str]]:
    """The rows of the table with this heading, by their first word."""
    table = TEXT[TEXT.index(f"| {first_column} |") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return {row[0].strip("` "): row[1:] for row in cells}


def written(ladder: Ladder) -> str:
    words = (
        " + ".join(action.name + ("" if action.argument is None else f" {action.argument:g}") for action in rung)
        for rung in ladder
    )
    return " → ".join(words)


def test_every_kind_is_documented_with_its_ladder() -> None:
    documented = rows("kind")
    assert list(documented) == list(KINDS)
    for name, kind in KINDS.items():
        ladder = "never retried" if kind.deterministic else written(POLICIES["standard"].ladder(name))
        assert documented[name] == [kind.title, kind.help, ladder]


def test_every_action_is_documented() -> None:
    documented = rows("action")
    assert list(documented) == list(ACTIONS)
    for name, action in ACTIONS.items():
        number = "–" if action.argument is None else f"{action.argument}, {action.default:g} unless given"
        assert documented[name] == [action.help, number]


def test_every_policy_is_documented_with_its_limits() -> None:
    documented = rows("policy")
    assert list(documented) == list(POLICIES)
    for name, policy in POLICIES.items():
        if policy.enabled:
            assert documented[name][1:] == [str(policy.max_attempts), str(policy.max_without_progress)]


def test_the_examples_are_valid() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
    mappings = [block["recovery"] for block in blocks if isinstance(block.get("recovery"), dict)]
    assert mappings
    for mapping in mappings:
        RecoveryForm.model_validate(mapping)
        policy = policy_from(mapping)
        assert policy.backoff == POLICIES["standard"].backoff
        assert "ladders" not in mapping or len(policy.ladder("nan_loss")) == 4


def test_every_shipped_profile_has_a_policy_that_is_understood() -> None:
    profiles = sorted((DOCS.parents[1] / "profiles").glob("*.yaml"))
    assert profiles
    for path in profiles:
        assert policy_from(load(path).form.recovery).name in POLICIES
