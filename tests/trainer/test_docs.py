"""docs/trainer.md says what the trainer does: settings, commands, models, data, faults, and what a run writes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from tests.trainer.running import ROOT
from trainer import commands, config, faults
from trainer.config.schema import DataSource, Parallel, Settings
from trainer.models import NAMES

PAGE = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def section(title: str) -> str:
    return re.split(r"^#+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> dict[str, str]:
    """The table of a section: what is in backticks in the first cell, and the rest of the row."""
    rows = re.findall(r"^(.*?) \| (.*)$", section(title), re.MULTILINE)
    return {name: rest for first, rest in rows for name in re.findall(r"`([^`]+)`", first)}


def test_every_command_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (settings_file,) = [text for language, text in BLOCKS if language == "yaml"]
    (tmp_path / "run.yaml").write_text(settings_file)
    assert len(config.unfold(config.from_arguments(["--config", "run.yaml"], {})[0])) == 2
    lines = "".join(text for language, text in BLOCKS if language == "sh").replace("\\\n", " ").splitlines()
    assert len(lines) > 10
    for line in lines:
        arguments = shlex.split(line.partition("trainer ")[2], comments=True)
        if arguments and arguments[0] in commands.NAMES:
            commands.parser_of(arguments[0]).parse_args(arguments[1:])
        else:
            config.from_arguments(arguments, {})


def test_every_flag_that_is_named_is_there() -> None:
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", re.sub(r"<!--.*?-->", "", PAGE)))
    others = {"--flag", "--set", "--standalone", "--nproc_per_node", "--config", "--print-config", "--json-schema"}
    others |= {flag for name in commands.NAMES for flag in commands.parser_of(name)._option_string_actions}
    settings = {config.flag(name) for name in Settings.model_fields} - {"--phase"}
    assert len(flags) > 20
    assert flags <= settings | others


def test_tasks_models_data_and_ways_of_spreading_are_all_there() -> None:
    models = {task: rest for task, rest in rows("Tasks and models").items() if task in NAMES}
    models["contrastive"] = models["classify"]  # "the same"
    assert {task: re.findall(r"`([^`]+)`", rest) for task, rest in models.items()} == {
        task: list(names) for task, names in NAMES.items()
    }
    assert set(rows("Data")) >= set(get_args(DataSource)) - {"auto"}
    assert set(rows("Ranks: ways of spreading")) >= set(get_args(Parallel))


def test_every_fault_is_described() -> None:
    described = rows("Faults on purpose")
    assert set(described) == set(faults.KINDS)
    for kind, options in faults.KINDS.items():
        assert all(f"{option}=" in described[kind] for option in options if option != "rank")


def test_every_event_in_the_code_is_in_the_table_and_no_other() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "trainer").rglob("*.py"))
    events = set(re.findall(r"\.event\(\s*[\w.]+,\s*\"(\w+)\"", code))
    events |= set(re.findall(r"event=\"(\w+)\"", code))
    (outcomes,) = re.findall(r"event: Literal\[(.*?)\]", code)
    events |= set(re.findall(r"\"(\w+)\"", outcomes)) | {"start", "phase"}
    described = re.findall(r"^`(\w+)` \| [^|]* \| .*$", section("Metrics"), re.MULTILINE)
    assert set(described) == events
