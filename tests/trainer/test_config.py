"""Settings: what flags and environment become, and how wrong ones are answered."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.running import ROOT
from trainer import config
from trainer.__main__ import main
from trainer.config import Settings, from_arguments
from trainer.errors import SettingsError


def parse(*flags: str, **environment: str) -> Settings:
    return from_arguments(flags, environment)[0]


def test_dashes_and_underscores_are_the_same() -> None:
    assert parse("--batch_size", "4", "--grad-accum=2") == parse("--batch-size=4", "--grad_accum", "2")
    assert parse("--output-dir=a_b").output_dir == Path("a_b")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], False), (["--gradient-checkpointing"], True), (["--gradient-checkpointing", "false"], False)]
    + [([f"--gradient_checkpointing={word}"], value) for word, value in [("True", True), ("no", False), ("on", True)]],
)
def test_booleans_are_bare_or_have_a_value(flags: list[str], expected: bool) -> None:
    assert parse(*flags, "--lr", "0.1").gradient_checkpointing is expected


def test_tasks_have_defaults_of_their_own_and_flags_win() -> None:
    assert parse("--task", "lm").width != parse().width
    assert parse("--task", "lm", "--width", "64").width == 64


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-sise", "3"], "unknown setting --batch-sise; did you mean --batch-size?"),
        (["--grad_acum=3"], "unknown setting --grad-acum; did you mean --grad-accum?"),
        (["--zzz"], "unknown setting --zzz; --help lists them"),
        (["digits"], "unexpected argument 'digits': every setting is given as --name value"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--batch-size", "4.5"], "--batch-size: expected a whole number, got '4.5'"),
        (["--lr", "0"], "--lr must be more than 0, got 0.0"),
        (["--lr", "nan"], "--lr: expected a number, got 'nan'"),
        (["--lr"], "--lr: expected one argument"),
        (["--final-lr-ratio", "2"], "--final-lr-ratio must be at most 1, got 2.0"),
        (["--task", "dgits"], "--task must be one of digits, lm, got 'dgits'"),
        (["--gradient-checkpointing", "maybe"], "--gradient-checkpointing: expected true or false, got 'maybe'"),
        (["--task", "lm", "--width", "40"], "--width must be a multiple of 32 for --task lm, got 40"),
        (["--inject", "oom@stp=4"], "--inject oom@stp=4: expected step=, rank=, times= after the @, got 'stp=4'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        parse(*flags)
    assert str(raised.value) == message
    assert main(flags) == 2
    assert capsys.readouterr().err == f"trainer: {message}\n"


def test_only_rank_0_complains(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(["--nonsense"]) == 2
    assert capsys.readouterr().err == ""


def test_a_wrong_flag_is_answered_without_loading_torch() -> None:
    code = "import sys; from trainer.__main__ import main; print(main(['--nope']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


def test_paths_follow_the_environment_and_flags_win() -> None:
    assert parse().metrics == Path("runs/digits/metrics.jsonl")
    inside = parse(GPUTUI_RUN_DIR="/r", GPUTUI_METRICS="/m.jsonl", GPUTUI_CHECKPOINT="/c.pt")
    assert (inside.output_dir, inside.checkpoint_dir) == (Path("/r"), Path("/r/checkpoints"))
    assert (inside.metrics, inside.resume) == (Path("/m.jsonl"), "/c.pt")
    given = parse("--output-dir", "/o", "--resume", "none", GPUTUI_RUN_DIR="/r", GPUTUI_CHECKPOINT="/c.pt")
    assert (given.metrics, given.resume) == (Path("/o/metrics.jsonl"), "none")


def test_print_config_shows_every_setting_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert main(["--print-config", "--output-dir", str(output), "--inject", "none", "--inject", "nan@step=2"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {setting.name for setting in dataclasses.fields(Settings)}
    assert shown["inject"] == ["nan@step=2,rank=0"]
    assert not output.exists()


def test_every_setting_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(config.flag(setting.name) in shown for setting in dataclasses.fields(Settings))
    assert all(setting.metadata["help"] for setting in dataclasses.fields(Settings))
