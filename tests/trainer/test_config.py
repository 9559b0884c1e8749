"""Settings: what flags, YAML and environment become, and how wrong ones are answered."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.trainer.running import ROOT
from trainer import config
from trainer.__main__ import main
from trainer.config import RunMode, Settings, as_json, as_plain, from_arguments, json_schema, nearest
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


def test_dashes_and_underscores_are_the_same() -> None:
    assert parse("--batch_size", "4", "--grad-accum=2") == parse("--batch-size=4", "--grad_accum", "2")
    assert parse("--output-dir=a_b").output_dir == Path("a_b")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], False), (["--augment"], True), (["--augment", "false"], False)]
    + [([f"--augment={word}"], value) for word, value in [("True", True), ("no", False), ("on", True), ("0", False)]],
)
def test_booleans_are_bare_or_have_a_value(flags: list[str], expected: bool) -> None:
    assert parse(*flags, "--lr", "0.1").augment is expected


@pytest.mark.parametrize(
    ("flags", "recompute", "compiled"),
    [
        (["--gradient-checkpointing", "--compile"], "full", "default"),
        (["--gradient-checkpointing", "True", "--compile=false"], "full", "off"),
        (["--gradient_checkpointing=False", "--compile=max-autotune"], "none", "max-autotune"),
        (["--gradient-checkpointing", "selective", "--compile", "off"], "selective", "off"),
    ],
)
def test_switches_take_true_and_false_too(flags: list[str], recompute: str, compiled: str) -> None:
    chosen = parse(*flags)
    assert (chosen.gradient_checkpointing, chosen.compile) == (recompute, compiled)


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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-sise", "3"], "unknown setting --batch-sise; did you mean --batch-size?"),
        (["--grad_acum=3"], "unknown setting --grad-acum; did you mean --grad-accum?"),
        (["--zzz"], "unknown setting --zzz; --help lists them"),
        (["--phase", "a"], "unknown setting --phase; did you mean --phases?"),
        (["digits"], "unexpected argument 'digits': every setting is given as --name value"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--batch-size", "4.5"], "--batch-size: expected a whole number or auto, got '4.5'"),
        (["--steps", "4.5"], "--steps: expected a whole number, got '4.5'"),
        (["--lr", "0"], "--lr must be more than 0, got 0"),
        (["--lr", "nan"], "--lr: expected a number, got 'nan'"),
        (["--lr"], "--lr: expected one argument"),
        (["--final-lr-ratio", "2"], "--final-lr-ratio must be at most 1, got 2"),
        (["--beta1", "1"], "--beta1 must be less than 1, got 1"),
        (["--task", "clasify"], "--task must be one of classify, lm, mlm, contrastive, got 'clasify'"),
        (
            ["--gradient-checkpointing=x"],
            "--gradient-checkpointing must be one of none, selective, operations, full, got 'x'",
        ),
        (["--augment", "maybe"], "--augment: expected true or false, got 'maybe'"),
        (["--task", "lm", "--width", "40"], "--width must be a multiple of 32 for --task lm, got 40"),
        (["--width", "12"], "--width must be a multiple of 8 for --task classify, got 12"),
        (
            ["--inject", "oom@stp=4"],
            "--inject oom@stp=4: expected step=, rank=, times=, above= after the @, got 'stp=4'",
        ),
        (["--model-options", "a,b=1"], "--model-options: expected key=value,key=value or a JSON object, got 'a,b=1'"),
        (["--model-options", "7"], "--model-options: expected names with values, got 7"),
        (["--phases", "{"], "--phases: this is not YAML: expected the node content, but found '<stream end>'"),
        (["--phases", "cold"], "--phases: expected a list, got 'cold'"),
        (["--config", "/nowhere.yaml"], "--config /nowhere.yaml: No such file or directory"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(*flags) == message
    assert main(flags) == 2
    assert capsys.readouterr().err == f"trainer: {message}\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task", "lm", "--data", "cifar10"], "--data cifar10 is no text: it does not suit --task lm"),
        (["--data", "stdlib"], "--data stdlib is text: it does not suit --task classify"),
        (["--hard-negatives", "4"], "--hard-negatives needs --task contrastive, not classify"),
        (["--task", "mlm", "--label-smoothing", "0.1"], "--label-smoothing needs --task classify, not mlm"),
        (
            ["--tensor-parallel", "2", "--parallel", "fsdp"],
            "--tensor-parallel needs a language model and --parallel fsdp, not --task classify with fsdp",
        ),
        (
            ["--tensor-parallel=2", "--parallel=fsdp", "--task=lm", "--ranks=3"],
            "--ranks must be left out: --tensor-parallel 2 needs all ranks",
        ),
        (["--cpu-offload"], "--cpu-offload needs --parallel fsdp, not ddp"),
        (["--sharded-checkpoints", "--parallel", "zero1"], "--sharded-checkpoints needs --parallel fsdp, not zero1"),
        (
            ["--compress-gradients", "bf16", "--parallel", "fsdp"],
            "--compress-gradients needs --parallel ddp or zero1, not fsdp",
        ),
        (
            ["--compress-gradients", "powersgd", "--precision", "fp16", "--device", "cuda"],
            "--compress-gradients powersgd needs --precision fp32 or bf16: errors outlive a scale of the loss",
        ),
        (["--powersgd-rank", "2"], "--powersgd-rank needs --compress-gradients powersgd, not none"),
        (
            ["--compile", "--parallel", "data_parallel"],
            "--compile works with every way of --parallel but data_parallel",
        ),
        (
            ["--compile", "max-autotune", "--parallel", "fsdp"],
            "--compile max-autotune uses CUDA graphs, for which weights must stay in place: not with fsdp",
        ),
        (["--compile", "--bucket-cap-mb", "0.5"], "--bucket-cap-mb must be at least 1 with --compile, got 0.5"),
        (["--sync-batchnorm", "--device", "cpu"], "--sync-batchnorm needs CUDA GPUs, not --device cpu"),
    ],
)
def test_settings_that_contradict_each_other(flags: list[str], message: str) -> None:
    assert refusal(*flags) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: 3\nbatch_sise: 3", "run.yaml:2: unknown setting batch_sise; did you mean batch_size?"),
        ("zzz: 3", "run.yaml:1: unknown setting zzz"),
        ("\nbatch_size: 0", "run.yaml:2: batch_size must be at least 1, got 0"),
        ("steps: yes", "run.yaml:1: steps: expected a whole number, got 'true'"),
        ("lr:", "run.yaml:1: lr: expected a number, got None"),
        ("resume: no", "run.yaml:1: resume: expected text, got False"),
        ("metrics: 3", "run.yaml:1: metrics: expected a path, got 3"),
        ("task: lm\nwidth: 40", "run.yaml:2: width must be a multiple of 32 for --task lm, got 40"),
        ("cpu_offload: true", "run.yaml:1: cpu_offload needs --parallel fsdp, not ddp"),
        ("phase: hot", "run.yaml:1: phase is set by the trainer; name the phase in phases"),
        ("steps: 3\nseed: 1\nsteps: 4", "run.yaml:3: steps is there twice"),
        ("steps: 3\n  lr: 4", "run.yaml:2: this is not YAML: mapping values are not allowed here"),
        ("- steps", "run.yaml:1: expected settings as name: value, one per line"),
        ("phases:\n  - {name: a, steps: 5, lr: 0}", "run.yaml:2: phase a: lr must be more than 0, got 0"),
        (
            "steps: 4\nphases:\n- name: a\n  steps: 5\n  keep: 2",
            "run.yaml:5: phase a: keep is the same for the whole run",
        ),
        ("model_options: &same {a: *same}", "run.yaml:1: this is not YAML: a value contains itself"),
        (
            "model_options: {a: " + "[" * 5000 + "]" * 5000 + "}",
            "run.yaml:1: this is not YAML: a value contains itself",
        ),
        (
            "phases:\n  - steps: 5",
            "run.yaml:2: phase 1: a name is made of at most 100 letters, digits, dots and dashes; it has no",
        ),
        ("steps: 4\nphases: [{name: a, steps: 5}]", "run.yaml:1: steps is 4, but the steps of the phases add up to 5:"),
    ],
)
def test_a_wrong_line_of_yaml_is_named(text: str, message: str, tmp_path: Path) -> None:
    said = refusal(write(tmp_path / "run.yaml", text))
    assert said.startswith(f"{tmp_path}/{message}") and "\n" not in said


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    assert refusal("--config", str(tmp_path / "x.yaml")) == f"--config {tmp_path}/x.yaml: this is not a text file"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRAINER_BATCH_SISE", "3", "unknown setting TRAINER_BATCH_SISE; did you mean TRAINER_BATCH_SIZE?"),
        ("TRAINER_ZZZ", "3", "unknown setting TRAINER_ZZZ"),
        ("TRAINER_GRAD_ACCUM", "0", "TRAINER_GRAD_ACCUM must be at least 1, got 0"),
        ("TRAINER_PHASE", "cold", "TRAINER_PHASE is set by the trainer; name the phase in phases"),
        ("TRAINER_PHASES", "[{name: a}]", "TRAINER_PHASES: phase a: steps must be a whole number of at least 1"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    assert refusal(**{variable: value}).startswith(message)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_every_rank_reports_a_wrong_setting(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever ends first has the launcher end the others before they have written anything."""
    monkeypatch.setenv("RANK", rank)
    assert main(["--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


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


def test_settings_survive_json_and_pickling() -> None:
    chosen = parse("--task", "mlm", "--phases", "[{name: a, steps: 4, lr: x0.5}]", "--weights", "w")
    assert Settings(**json.loads(as_json(chosen))) == chosen
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    assert as_plain(chosen)["weights"] == "w" and chosen.steps == 4


@pytest.mark.parametrize(
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


def test_settings_that_python_gives_are_checked_too() -> None:
    with pytest.raises(ValidationError, match=r"hard_negatives needs --task contrastive"):
        Settings(hard_negatives=3)
    with pytest.raises(ValidationError, match="inject"):
        Settings(inject=3)


def test_every_setting_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"{config.flag(name)} " in shown for name in Settings.model_fields if name != "phase")
    assert all(setting.description for setting in Settings.model_fields.values())
    assert {name for group in GROUPS for name in group.model_fields} == set(Settings.model_fields)


def test_the_nearest_name() -> None:
    assert (nearest("batchsize"), nearest("zzz")) == ("batch_size", "")


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


def test_actions() -> None:
    actions = [from_arguments(flags, {})[1] for flags in ([], ["--print-config"], ["--json_schema"])]
    assert actions == [RunMode.TRAIN, RunMode.PRINT_CONFIG, RunMode.JSON_SCHEMA]
    assert from_arguments(["--json-schema", "--print-config"], {})[1] is RunMode.PRINT_CONFIG


@pytest.mark.parametrize("name", ["--phases", "--model-options"])
@pytest.mark.parametrize("text", ["--", "[" * 5000, "{a: &b {c: *b}}"])
def test_text_that_is_nothing_is_refused_in_one_line(name: str, text: str) -> None:
    said = refusal(f"{name}={text}")
    assert said.startswith(f"{name}: ") and "\n" not in said and len(said) < 200


def test_a_seed_is_what_torch_can_take() -> None:
    assert parse(f"--seed={2**63 - 1}").seed == 2**63 - 1
    assert refusal(f"--seed={2**63}").startswith("--seed must be at most 9223372036854775807")


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
