"""Settings: what flags, YAML and environment become, and how wrong ones are answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tables import table
from tests.texts import mentions
from tests.trainer.running import ROOT
from trainer import config
from trainer.__main__ import main
from trainer.config import Settings, from_arguments
from trainer.config.schema import GROUPS, RUN_WIDE, TASK_DEFAULTS
from trainer.errors import SettingsError

NUMBERS = {"a": 10, "b": 1e-5, "c": -3, "d": 0.5, "e": "1:30", "f": "2024-11-20", "g": True}


def parse(*flags: str, **environment: str) -> Settings:
    return from_arguments(flags, environment)[0]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return f"--config={path}"


def test_flags_win_over_the_environment_over_later_files_over_tasks(tmp_path: Path) -> None:
    weak = write(tmp_path / "weak.yaml", "task: lm\nsteps: 1\nlr: 1e-2\nseed: 1\nkeep: 1\n")
    strong = write(tmp_path / "strong.yaml", "lr: 2e-2\nseed: 2\nkeep: 2\n")
    chosen = parse(weak, strong, "--keep", "4", TRAINER_SEED="3", TRAINER_KEEP="3", OTHER="x")
    assert (chosen.steps, chosen.lr, chosen.seed, chosen.keep, chosen.grad_accum) == (1, 0.02, 3, 4, 3)
    assert chosen.width == TASK_DEFAULTS["lm"]["width"] != parse().width
    assert parse("--task", "lm", "--width", "64").width == 64


def test_yaml_says_what_flags_say(tmp_path: Path) -> None:
    file = write(
        tmp_path / "run.yaml",
        "task: lm\nbatch_size: auto\ncompile: off\ngradient_checkpointing: true\ndata_dir:\ninject: oom@step=4\n"
        "model_options: {n_layer: 2, scale: 0.5}\noutput_dir: out\n",
    )
    arguments = ["--task", "lm", "--batch_size", "auto", "--gradient-checkpointing", "--inject", "oom@step=4"]
    same = parse(*arguments, "--model-options", "n_layer=2,scale=0.5", "--output-dir", "out")
    assert parse(file) == same
    assert same.model_options == {"n_layer": 2, "scale": 0.5}
    assert same.inject == ("oom@step=4",)
    assert parse(write(tmp_path / "empty.yaml", "")) == parse()


@table(
    ("text", "expected"),
    [
        ("a=1e-3, b=true,c=gelu", {"a": 0.001, "b": True, "c": "gelu"}),
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ("{a: [1, 2], b: x=y}", {"a": [1, 2], "b": "x=y"}),
        ("{a: 010, b: 1e-5, c: -3, d: .5, e: 1:30, f: 2024-11-20, g: yes}", NUMBERS),
        ("", {}),
    ],
)
def test_model_options_are_pairs_or_an_object(text: str, expected: dict[str, Any], tmp_path: Path) -> None:
    assert parse("--model-options", text).model_options == parse(TRAINER_MODEL_OPTIONS=text).model_options == expected
    if text.startswith("{"):
        assert parse(write(tmp_path / "run.yaml", f"model_options: {text}")).model_options == expected


WRONG: list[tuple[list[str] | str | dict[str, str], list[str]]] = [
    # Flags.
    (["--batch-sise", "3"], ["--batch-sise", "did you mean --batch-size?"]),
    (["digits"], ["digits", "--name value"]),
    (["--batch-size", "0"], ["--batch-size", "equal to 1", "'auto'", "'0'"]),
    (["--steps", "4.5"], ["--steps", "integer", "'4.5'"]),
    (["--lr", "0"], ["--lr", "greater than 0", "'0'"]),
    (["--lr"], ["--lr", "expected one argument"]),
    (["--task", "clasify"], ["--task", "'classify', 'lm', 'mlm' or 'contrastive'", "'clasify'"]),
    (["--model-options", "a,b=1"], ["--model-options", "key=value", "'a,b=1'"]),
    (["--phases", "{"], ["--phases", "not YAML"]),
    (["--model-options", "[" * 3000], ["--model-options", "not YAML", "recursion"]),
    (["--model-options", "3"], ["--model-options should be name: value, got 3"]),
    (["--config", "/nowhere.yaml"], ["/nowhere.yaml", "No such file"]),
    (["--width", "20"], ["--width", "multiple of 8", "20"]),
    (["--lr-shares", "head=0"], ["--lr-shares", "greater than 0", "0"]),
    (["--task", "lm", "--width", "40"], ["--width", "32", "--task lm", "40"]),
    (["--task", "lm", "--data", "cifar10"], ["--data cifar10", "--task lm"]),
    (["--hard-negatives", "4"], ["--hard-negatives", "--task contrastive", "classify"]),
    (["--tensor-parallel", "2", "--parallel", "fsdp"], ["--tensor-parallel", "language model", "classify"]),
    (["--task", "contrastive", "--augment", "false"], ["--augment", "--task contrastive"]),
    (["--task", "contrastive", "--parallel", "data_parallel"], ["--parallel data_parallel", "use ddp"]),
    (["--cpu-offload"], ["--cpu-offload", "--parallel fsdp", "ddp"]),
    (["--compile", "--parallel", "data_parallel"], ["--compile", "data_parallel"]),
    (["--compile", "--bucket-cap-mb", "0.5"], ["--bucket-cap-mb", "at least 1", "--compile", "0.5"]),
    (["--ema", "0.9", "--parallel", "local_sgd"], ["--ema 0.9", "--parallel local_sgd"]),
    (["--check-gradients", "5", "--parallel", "fsdp"], ["--check-gradients", "--shard-ranks", "fsdp"]),
    (["--precision", "fp16", "--parallel", "local_sgd"], ["--precision fp16", "--parallel local_sgd"]),
    (["--sync-batchnorm", "--device", "cpu"], ["--sync-batchnorm", "GPUs", "--device cpu"]),
    # Lines of run.yaml.
    ("steps: 3\nbatch_sise: 3", ["run.yaml:2: ", "batch_sise", "did you mean batch_size?"]),
    ("\nbatch_size: 0", ["run.yaml:2: batch_size", "1", "got 0"]),
    ("resume: no", ["run.yaml:1: resume", "string", "False"]),
    ("steps: yes", ["run.yaml:1: steps", "number", "True"]),
    ("lr_shares: {head: on}", ["run.yaml:1: lr_shares", "number", "True"]),
    ("phases: [{name: a, steps: yes}]", ["run.yaml:1: phase a: steps", "number", "True"]),
    ("phases: [{name: a, steps: 1, lr: on}]", ["run.yaml:1: phase a: lr", "number", "True"]),
    ("phases: [3]", ["run.yaml:1: phases should be name: value", "3"]),
    ("data_dir: 3", ["run.yaml:1: data_dir should be a path, got 3"]),
    ("steps: 0x10", ["run.yaml:1: steps", "integer", "'0x10'"]),
    ("phase: hot", ["run.yaml:1: phase", "name the phase in phases"]),
    ("steps: 3\nseed: 1\nsteps: 4", ["run.yaml:3: steps is there twice"]),
    ("phases: &a [*a]", ["run.yaml:1: ", "not YAML", "recursion"]),
    ("steps: 3\n  lr: 4", ["run.yaml:2: ", "not YAML", "mapping values"]),
    ("- steps", ["run.yaml:1: ", "name: value"]),
    ("seed: 1\nphases:\n  - name: a\n    steps: 5\n    lr: 0", ["run.yaml:5: phase a: lr", "greater than 0", "got 0"]),
    ("steps: 4\nphases: [{name: a, steps: 5}]", ["run.yaml:1: steps is 4", "add up to 5"]),
    # Variables.
    ({"TRAINER_BATCH_SISE": "3"}, ["TRAINER_BATCH_SISE", "did you mean TRAINER_BATCH_SIZE?"]),
    ({"TRAINER_GRAD_ACCUM": "0"}, ["TRAINER_GRAD_ACCUM", "1", "'0'"]),
    ({"TRAINER_PHASES": "[{name: a}]"}, ["TRAINER_PHASES: phase a: steps"]),
    *(({"GPUTUI_GRACE": grace}, ["GPUTUI_GRACE", "seconds", f"'{grace}'"]) for grace in ("soon", "-5", "inf", "nan")),
]


@table(("value", "said"), WRONG)
def test_a_wrong_setting_is_one_line_with_its_place(
    value: list[str] | str | dict[str, str], said: list[str], tmp_path: Path
) -> None:
    flags = [write(tmp_path / "run.yaml", value)] if isinstance(value, str) else value
    with pytest.raises(SettingsError) as raised:
        parse(*flags) if isinstance(flags, list) else parse(**flags)
    assert mentions(str(raised.value), *said)
    assert "\n" not in str(raised.value)


def test_a_wrong_flag_is_answered_without_loading_torch() -> None:
    code = "import sys; from trainer.__main__ import main; print(main(['--nope']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("trainer: unknown argument --nope")


def test_what_a_supervisor_asks_for_gives_way_to_settings() -> None:
    assert parse().metrics == Path("runs/classify/metrics.jsonl")
    inside = parse(GPUTUI_RUN_DIR="/r", GPUTUI_METRICS="/m.jsonl", GPUTUI_CHECKPOINT="/c.pt", GPUTUI_GRACE="120")
    assert (inside.output_dir, inside.checkpoint_dir) == (Path("/r"), Path("/r/checkpoints"))
    assert (inside.metrics, inside.resume, inside.stop_timeout) == (Path("/m.jsonl"), "/c.pt", 100)
    settings = parse("--output-dir", "/o", "--resume", "none", GPUTUI_RUN_DIR="/r", GPUTUI_CHECKPOINT="/c.pt")
    assert (settings.metrics, settings.resume, settings.stop_timeout) == (Path("/o/metrics.jsonl"), "none", 25)
    assert parse("--output-dir", ".", GPUTUI_RUN_DIR="/r").checkpoint_dir == Path("checkpoints")
    assert parse(TRAINER_STOP_TIMEOUT="8", GPUTUI_GRACE="120").stop_timeout == 8


def test_print_config_shows_every_setting_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    flags = ["--output-dir", str(output), "--inject", "none", "--inject", "nan@step=2", "--data-dir", ""]
    assert main(["--print-config", *flags]) == 0
    text = capsys.readouterr().out
    settings = json.loads(text)
    assert set(settings) == set(Settings.model_fields)
    assert settings["inject"] == ["nan@step=2"]
    assert settings["data_dir"] is None
    assert not output.exists()
    assert parse(write(tmp_path / "shown.json", text)) == parse(*flags)


def test_help_and_json_schema_have_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    names = set(Settings.model_fields) - {"phase"}
    assert all(f"{config.flag(name)} " in text for name in names)
    assert "(default: 16; lm, mlm: 8)" in " ".join(text.split()), "the defaults of tasks"
    assert {name for group in GROUPS for name in group.model_fields} == names | {"phase"}
    assert main(["--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    settings = schema["properties"]
    phase = schema["properties"]["phases"]["items"]
    assert set(settings) == names
    assert all(setting["description"] for setting in settings.values())
    assert settings["compile"]["enum"] == ["off", "default", "reduce-overhead", "max-autotune", True, False]
    assert set(phase["properties"]) == names - RUN_WIDE | {"name"}
    assert phase["required"] == ["name", "steps"]
    assert schema["additionalProperties"] is False is phase["additionalProperties"]
    for number in ("batch_size", "lr"):
        assert any(kind.get("pattern") for kind in phase["properties"][number]["anyOf"])
