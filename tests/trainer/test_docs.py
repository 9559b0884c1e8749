"""docs/trainer.md says what the trainer does: settings, commands, models, data, faults, and what a run writes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import yaml

from docs.settings_tables import updated
from tests.trainer.running import ROOT, lines, train
from trainer import commands, config, faults
from trainer.config.schema import GROUPS, DataSource, Parallel, Settings
from trainer.models import NAMES

PAGE = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def section(title: str) -> str:
    return re.split(r"^#+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> dict[str, str]:
    """The table of a section: what is in backticks in the first cell, and the rest of the row."""
    found = re.findall(r"^\| (.*?) \| (.*) \|$", section(title), re.MULTILINE)
    return {name: rest for first, rest in found for name in re.findall(r"`([^`]+)`", first)}


def words(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_the_tables_of_settings_are_those_of_the_schema() -> None:
    assert updated(PAGE) == PAGE, "make them anew: python -m docs.settings_tables"
    assert re.findall(r"<!-- settings: (\w+) -->", PAGE) == [group.__name__ for group in GROUPS]


def test_a_table_that_is_out_of_date_is_made_anew() -> None:
    old = "text\n<!-- settings: RunSettings -->\n| `--tusk` | x | y |\n<!-- end -->\nmore"
    new = updated(old)
    assert new.startswith("text\n") and new.endswith("\nmore") and "--tusk" not in new
    assert "| `--steps` | 300 (lm, mlm: 200) | optimizer steps" in new


def test_every_command_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (settings_file,) = [text for language, text in BLOCKS if language == "yaml"]
    (tmp_path / "run.yaml").write_text(settings_file)
    assert len(config.unfold(config.from_arguments(["--config", "run.yaml"], {})[0])) == 2
    written = [
        shlex.split(line, comments=True)
        for language, text in BLOCKS
        if language == "sh"
        for line in text.replace("\\\n", " ").splitlines()
    ]
    flags = [command[command.index("trainer") + 1 :] for command in written]
    assert len(flags) > 10
    for one in flags:
        if one and one[0] in commands.NAMES:
            commands.parser_of(one[0]).parse_args(one[1:])
        else:
            config.from_arguments(one, {})


def test_every_flag_that_is_named_is_there() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", re.sub(r"<!--.*?-->", "", PAGE)))
    others = {"--flag", "--set", "--standalone", "--nproc_per_node", "--config", "--print-config", "--json-schema"}
    others |= {flag for name in commands.NAMES for flag in commands.parser_of(name)._option_string_actions}
    settings = {config.flag(name) for name in Settings.model_fields} - {"--phase"}
    assert settings <= named <= settings | others


def test_the_schema_for_editors_is_written_as_shown() -> None:
    schema = config.json_schema()
    (settings_file,) = [text for language, text in BLOCKS if language == "yaml"]
    given = yaml.safe_load(settings_file)
    assert set(given) <= set(schema["properties"])
    for phase in given["phases"]:
        assert set(phase) <= set(schema["properties"]["phases"]["items"]["properties"])


def test_tasks_models_data_and_ways_of_spreading_are_all_there() -> None:
    tasks, models = rows("Tasks and models"), section("Tasks and models")
    assert set(NAMES) <= set(tasks)
    for task, names in NAMES.items():
        for name in names:
            assert re.search(rf"^\|.*`{name}`.*\| .*`{task}`", models, re.MULTILINE), (task, name)
    assert set(rows("Data")) >= set(get_args(DataSource)) - {"auto"}
    assert set(rows("Ranks: ways of spreading")) >= set(get_args(Parallel))


def test_every_shipped_profile_is_described() -> None:
    shipped = {path.stem for path in (ROOT / "profiles").glob("*.yaml")} - {"custom-script"}
    assert set(rows("Profiles that come with gputui")) == shipped


def test_every_fault_is_described() -> None:
    described = rows("Faults on purpose")
    assert set(described) == set(faults.KINDS)
    for kind, options in faults.KINDS.items():
        assert all(f"{option}=" in described[kind] for option in options)


def test_every_event_in_the_code_is_in_the_table_and_no_other() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "trainer").rglob("*.py"))
    named = set(re.findall(r"\.event\(\s*[\w.]+,\s*\"(\w+)\"", code))
    named |= set(re.findall(r"event=\"(\w+)\"", code))
    (outcomes,) = re.findall(r"event: Literal\[(.*?)\]", code)
    named |= set(re.findall(r"\"(\w+)\"", outcomes)) | {"start", "phase"}
    assert set(rows_of_events()) == named


def rows_of_events() -> dict[str, str]:
    found = re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", section("Metrics"), re.MULTILINE)
    return dict(found)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that uses about everything."""
    place = tmp_path_factory.mktemp("run")
    often = "--validate-every 2 --checkpoint-every 2 --trace-every 7 --histograms-every 8 --bottleneck-every 3"
    kept = "--best-checkpoint --epoch-checkpoints --text-log --cache-bytes 100000 --ema 0.9 --oom-retries 1"
    phases = '[{"name": "a", "steps": 3}, {"name": "b", "steps": 5, "batch_size": 400}]'
    injected = "oom@step=5;disk_full@step=4"
    assert train(place, *often.split(), *kept.split(), "--phases", phases, "--inject", injected) == 0
    damaged = place / "checkpoints" / "step_00000008.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    longer = '[{"name": "a", "steps": 3}, {"name": "b", "steps": 6}]'
    assert train(place, "--resume", "auto", "--phases", longer, "--batch-size", "auto", "--max-batch-size", "4") == 0
    return place


def test_every_field_of_every_line_is_documented(output: Path) -> None:
    described = rows_of_events()
    step_fields = words(section("Metrics").split("every step, from rank 0")[1].splitlines()[0])
    seen = set()
    for line in lines(output):
        event = line.get("event")
        fields = set(line) - {"step", "time", "event"}
        seen.add(event)
        if event is None:
            assert fields <= step_fields
            continue
        known = words(described["start" if event == "phase" else event])
        if event in ("validation", "end"):
            prefix = "val/" if event == "validation" else "test_"
            known |= {name for name in fields if name.startswith(prefix)}
        assert fields <= known, event
    elsewhere = {
        "validation_batch_reduced",
        "sample_skipped",
        "checkpoint_skipped",
        "stop",
        "prepared",
        "answer",
        "export",
    }
    assert seen - {None} >= set(described) - elsewhere


def test_every_file_of_a_run_is_in_the_picture(output: Path) -> None:
    (picture,) = [text for language, text in BLOCKS if not language and text.startswith("OUTPUT_DIR/")]
    shown = set(re.findall(r"[\w.]+(?:\.\w+)+|\w+/", picture))
    for path in output.rglob("*"):
        if path.is_file() and path.parent.name != "faults":
            name = re.sub(r"\d{8}", "00000040", path.name).replace("step_00000040.json", "step_00000500.json")
            name = re.sub(r"epoch_\d+", "epoch_3", name).removesuffix(".stale")
            if path.parent.name != "checkpoints":
                name = name.removesuffix(".sha256")
            assert name in shown or name == "best_model.pt.sha256", path
    histogram = json.loads((output / "histograms.jsonl").read_text().splitlines()[0])
    assert set(histogram) - {"step", "time"} <= words(section("Histograms, traces, trackers, text log"))


def test_every_feature_names_tests_that_are_there_or_is_unmeasured() -> None:
    cells = re.findall(r"^\| (?!feature|---)(.*?) \| (.*) \|$", section("What shows that it works"), re.MULTILINE)
    assert len(cells) > 15
    for feature, shown in cells:
        named = re.findall(r"`([^`]+\.py)`", shown)
        assert named or shown == "unmeasured on a GPU", feature
        for name in named:
            found = list((ROOT if "/" in name else ROOT / "tests" / "trainer").glob(name))
            assert found and all("\ndef test_" in path.read_text(encoding="utf-8") for path in found), (feature, name)
