"""Nothing that a user can do or read in a script has gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.interface import LIST, Interface, actions, commands, json_keys, missing


@pytest.fixture(scope="module")
def before() -> Interface:
    return json.loads(LIST.read_text("utf-8"))  # type: ignore[no-any-return]


def test_every_command_and_option_is_there(before: Interface) -> None:
    assert missing(before["commands"], commands()) == []


def test_every_action_has_its_keys(before: Interface) -> None:
    assert missing(before["actions"], actions()) == []


@pytest.mark.long
def test_every_key_of_the_json_is_there(before: Interface, tmp_path: Path) -> None:
    assert missing(before["json"], json_keys(tmp_path)) == []


def test_what_has_gone_is_named() -> None:
    held = {"gputui ps": ["--json"], "gputui rm": []}
    assert missing(held, {"gputui ps": ["--active"]}) == ["gputui ps: --json", "gputui rm"]
    assert missing(held, held) == []


def test_a_key_was_taken_back_on_purpose_and_finds_things_there_too() -> None:
    """ctrl+p turned to the previous profile in the launch form of 0.1.0, and found things everywhere else: who pressed
    it there by habit launched another profile than the one that they had chosen. pgup turns to the previous one."""
    now = actions()
    assert "launch pgup" in now["profile_previous"] or "launch pageup" in now["profile_previous"]
    assert not any(one == "launch ctrl+p" for name, ones in now.items() for one in ones if name == "profile_previous")
    assert "launch question_mark" in now["help"], "and ? is help there as well"
