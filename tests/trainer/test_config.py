"""Settings: what flags, YAML and environment become, and how wrong ones are answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tables import table
from tests.trainer.running import ROOT
from trainer import config
from trainer.__main__ import main
from trainer.config import Settings, as_json, as_plain, from_arguments, json_schema
from trainer.config.phases import RUN_WIDE
from trainer.config.schema import GROUPS, TASK_DEFAULTS
from trainer.errors import SettingsError


def parse(*flags: str, **environment: str) -> Settings:
    return from_arguments(flags, environment)[0]


def refusal(*flags: str, **environment: str) -> str:
    with pytest.raises(SettingsError) as raised:
        parse(*flags, **environment)
    return str(raised.value)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return f"--config={path}"


def test_tasks_have_defaults_of_their_own_and_flags_win() -> None:
    assert parse("--task", "lm").width == Settings(task="lm").width == TASK_DEFAULTS["lm"]["width"] != parse().width
    assert parse("--task", "lm", "--width", "64").width == 64


def test_flags_win_over_the_environment_over_yaml_over_defaults(tmp_path: Path) -> None:
    weak = write(tmp_path / "weak.yaml", "steps: 1\nlr: 1e-2\nseed: 1\nkeep: 1\n")
    strong = write(tmp_path / "strong.yaml", "lr: 2e-2\nseed: 2\nkeep: 2\n")
    chosen = parse(weak, strong, "--keep", "4", TRAINER_SEED="3", TRAINER_KEEP="3", OTHER="x")
    assert (chosen.steps, chosen.lr, chosen.seed, chosen.keep, chosen.grad_accum) == (1, 0.02, 3, 4, 3)


def test_yaml_says_what_flags_say(tmp_path: Path) -> None:
    file = write(
        tmp_path / "run.yaml",
        "task: lm\nbatch_size: auto\ncompile: off\ngradient_checkpointing: true\ndata_dir:\ninject: oom@step=4\n"
        "model_options: {n_layer: 2, scale: 0.5}\noutput_dir: out\n",
    )
    words = ["--task", "lm", "--batch-size", "auto", "--gradient-checkpointing", "--inject", "oom@step=4"]
    same = parse(*words, "--model-options", "n_layer=2,scale=0.5", "--output-dir", "out")
    assert parse(file) == same
    assert same.model_options == {"n_layer": 2, "scale": 0.5} and same.inject == ("oom@step=4,rank=0",)
    assert parse(write(tmp_path / "empty.yaml", "")) == parse()


@table(
    ("text", "expected"),
    [
        ("a=1e-3, b=true,c=gelu", {"a": 0.001, "b": True, "c": "gelu"}),
        ("a=False", {"a": False}),
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ("{a: [1, 2], b: x=y}", {"a": [1, 2], "b": "x=y"}),
        ("", {}),
    ],
)
def test_model_options_are_pairs_or_an_object(text: str, expected: dict[str, Any]) -> None:
    assert parse("--model-options", text).model_options == parse(TRAINER_MODEL_OPTIONS=text).model_options == expected


@table(
    ("flags", "message"),
    [
        (["--batch-sise", "3"], "unknown setting --batch-sise; did you mean --batch-size?"),
        (["digits"], "unexpected argument 'digits': every setting is given as --name value"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--steps", "4.5"], "--steps: expected a whole number, got '4.5'"),
        (["--lr", "0"], "--lr must be more than 0, got 0"),
        (["--lr"], "--lr: expected one argument"),
        (["--final-lr-ratio", "2"], "--final-lr-ratio must be at most 1, got 2"),
        (["--task", "clasify"], "--task must be one of classify, lm, mlm, contrastive, got 'clasify'"),
        (["--augment", "maybe"], "--augment: expected true or false, got 'maybe'"),
        (["--task", "lm", "--width", "40"], "--width must be a multiple of 32 for --task lm, got 40"),
        (["--model-options", "a,b=1"], "--model-options: expected key=value,key=value or a JSON object, got 'a,b=1'"),
        (["--phases", "{"], "--phases: this is not YAML: expected the node content, but found '<stream end>'"),
        (["--config", "/nowhere.yaml"], "--config /nowhere.yaml: No such file or directory"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(*flags) == message
    assert main(flags) == 2
    assert capsys.readouterr().err == f"trainer: {message}\n"


@table(
    ("flags", "message"),
    [
        (["--task", "lm", "--data", "cifar10"], "--data cifar10 is no text: it does not suit --task lm"),
        (["--hard-negatives", "4"], "--hard-negatives needs --task contrastive, not classify"),
        (
            ["--tensor-parallel", "2", "--parallel", "fsdp"],
            "--tensor-parallel needs a language model and --parallel fsdp, not --task classify with fsdp",
        ),
        (["--cpu-offload"], "--cpu-offload needs --parallel fsdp, not ddp"),
        (["--sharded-checkpoints", "--parallel", "zero1"], "--sharded-checkpoints needs --parallel fsdp, not zero1"),
        (
            ["--compile", "--parallel", "data_parallel"],
            "--compile works with every way of --parallel but data_parallel",
        ),
        (["--compile", "--bucket-cap-mb", "0.5"], "--bucket-cap-mb must be at least 1 with --compile, got 0.5"),
        (["--sync-batchnorm", "--device", "cpu"], "--sync-batchnorm needs CUDA GPUs, not --device cpu"),
    ],
)
def test_settings_that_contradict_each_other(flags: list[str], message: str) -> None:
    assert refusal(*flags) == message


@table(
    ("text", "message"),
    [
        ("steps: 3\nbatch_sise: 3", "run.yaml:2: unknown setting batch_sise; did you mean batch_size?"),
        ("\nbatch_size: 0", "run.yaml:2: batch_size must be at least 1, got 0"),
        ("steps: yes", "run.yaml:1: steps: expected a whole number, got 'true'"),
        ("resume: no", "run.yaml:1: resume: expected text, got False"),
        ("phase: hot", "run.yaml:1: phase is set by the trainer; name the phase in phases"),
        ("steps: 3\nseed: 1\nsteps: 4", "run.yaml:3: steps is there twice"),
        ("steps: 3\n  lr: 4", "run.yaml:2: this is not YAML: mapping values are not allowed here"),
        ("- steps", "run.yaml:1: expected settings as name: value, one per line"),
        ("phases:\n  - {name: a, steps: 5, lr: 0}", "run.yaml:2: phase a: lr must be more than 0, got 0"),
        ("model_options: &same {a: *same}", "run.yaml:1: this is not YAML: a value contains itself"),
        ("steps: 4\nphases: [{name: a, steps: 5}]", "run.yaml:1: steps is 4, but the steps of the phases add up to 5:"),
    ],
)
def test_a_wrong_line_of_yaml_is_named(text: str, message: str, tmp_path: Path) -> None:
    said = refusal(write(tmp_path / "run.yaml", text))
    assert said.startswith(f"{tmp_path}/{message}") and "\n" not in said


@table(
    ("variable", "value", "message"),
    [
        ("TRAINER_BATCH_SISE", "3", "unknown setting TRAINER_BATCH_SISE; did you mean TRAINER_BATCH_SIZE?"),
        ("TRAINER_GRAD_ACCUM", "0", "TRAINER_GRAD_ACCUM must be at least 1, got 0"),
        ("TRAINER_PHASES", "[{name: a}]", "TRAINER_PHASES: phase a: steps must be a whole number of at least 1"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    assert refusal(**{variable: value}).startswith(message)


def test_a_wrong_flag_is_answered_without_loading_torch() -> None:
    code = "import sys; from trainer.__main__ import main; print(main(['--nope']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


def test_paths_follow_the_environment_and_flags_win() -> None:
    assert parse().metrics == Path("runs/classify/metrics.jsonl")
    inside = parse(GPUTUI_RUN_DIR="/r", GPUTUI_METRICS="/m.jsonl", GPUTUI_CHECKPOINT="/c.pt")
    assert (inside.output_dir, inside.checkpoint_dir) == (Path("/r"), Path("/r/checkpoints"))
    assert (inside.metrics, inside.resume) == (Path("/m.jsonl"), "/c.pt")
    given = parse("--output-dir", "/o", "--resume", "none", GPUTUI_RUN_DIR="/r", GPUTUI_CHECKPOINT="/c.pt")
    assert (given.metrics, given.resume) == (Path("/o/metrics.jsonl"), "none")
    assert parse("--output-dir", ".", GPUTUI_RUN_DIR="/r").checkpoint_dir == Path("checkpoints")
    assert parse(TRAINER_RESUME="auto", GPUTUI_CHECKPOINT="/c.pt").resume == "auto"


def test_print_config_shows_every_setting_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    flags = ["--output-dir", str(output), "--inject", "none", "--inject", "nan@step=2", "--data-dir", ""]
    assert main(["--print-config", *flags]) == 0
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert set(shown) == set(Settings.model_fields)
    assert shown["inject"] == ["nan@step=2,rank=0"] and shown["data_dir"] is None
    assert not output.exists()
    assert parse(write(tmp_path / "shown.json", text)) == parse(*flags)


@table(
    ("given", "stored"),
    [
        ("postgresql://me:s3cret@host:5432/runs", "postgresql://host:5432/runs"),
        ("https://me:p@ss@host/mlflow", "https://host/mlflow"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
    ],
)
def test_what_others_are_given_has_no_password(given: str, stored: str) -> None:
    settings = parse("--mlflow", given)
    assert as_plain(settings)["mlflow"] == stored
    assert json.loads(as_json(settings))["mlflow"] == given


def test_every_setting_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"{config.flag(name)} " in shown for name in Settings.model_fields if name != "phase")
    assert all(setting.description for setting in Settings.model_fields.values())
    assert {name for group in GROUPS for name in group.model_fields} == set(Settings.model_fields)


def test_the_json_schema_knows_every_key_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json_schema()
    assert schema["additionalProperties"] is False
    settings = schema["properties"]
    assert set(settings) == set(Settings.model_fields) - {"phase"}
    assert all(one["description"] for one in settings.values())
    assert settings["compile"]["enum"] == ["off", "default", "reduce-overhead", "max-autotune", True, False]
    phase = settings["phases"]["items"]
    assert phase["additionalProperties"] is False and phase["required"] == ["name", "steps"]
    assert set(phase["properties"]) == set(Settings.model_fields) - RUN_WIDE | {"name"}
    assert {"type": "integer", "minimum": 1} in phase["properties"]["batch_size"]["anyOf"]
    assert any(kind.get("pattern") for kind in phase["properties"]["lr"]["anyOf"])


def test_the_time_to_stop_follows_from_a_supervisors_grace() -> None:
    def stop_timeout(*flags: str, **environment: str) -> float:
        return from_arguments(flags, environment)[0].stop_timeout

    assert stop_timeout() == 25
    assert stop_timeout(GPUTUI_GRACE="30") == 25
    assert stop_timeout(GPUTUI_GRACE="120") == 100
    assert stop_timeout("--stop-timeout", "7", GPUTUI_GRACE="120") == 7
    assert stop_timeout(GPUTUI_GRACE="120", TRAINER_STOP_TIMEOUT="8") == 8
    for wrong in ("soon", "-1", "nan", "inf"):
        with pytest.raises(SettingsError, match="GPUTUI_GRACE is"):
            stop_timeout(GPUTUI_GRACE=wrong)
