"""Data, models and tasks of one's own: the documented examples run, and what is wrong is said before training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tables import table
from tests.trainer.ranks import ALONE
from tests.trainer.running import ROOT, events, settings, step_lines, train
from trainer.errors import SettingsError
from trainer.session import PhaseSession, TrainingProgress

HERE = "tests.trainer.own_code"
REGRESSION = ("--data", f"{HERE}:table", "--model", f"{HERE}:network", "--task", f"{HERE}:Regression")
EXAMPLES = re.findall(r"in `(\w+)\.py`.*?`python -m trainer (.*?)`:\n\n```python\n(.*?)```",
                      (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8"), re.DOTALL)  # fmt: skip


@pytest.mark.parametrize(("module", "flags", "code"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
def test_a_documented_example_learns(
    module: str, flags: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text(code)
    features = np.random.default_rng(0).normal(size=(200, 6))
    np.savez(tmp_path / "houses.npz", features=features, price=features.sum(axis=1) + 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert train(tmp_path / "out", *flags.split(), "--steps", "40", "--lr", "0.01") == 0
    [first, *_, last] = [line["loss"] for line in step_lines(tmp_path / "out")]
    assert last < 0.7 * first
    [end] = events(tmp_path / "out", "end")
    assert end["test_loss"] < first


def test_both_examples_are_there() -> None:
    assert [example[0] for example in EXAMPLES] == ["houses", "sparse"]


def test_a_task_has_arguments_and_metrics_of_its_own(tmp_path: Path) -> None:
    flags = ("--steps", "30", "--lr", "0.05", "--task-options", "scale=0.5", "--model-options", '{"width": 8}')
    assert train(tmp_path, *REGRESSION[:-1], f"{HERE}:Scaled", *flags, "--best-checkpoint") == 0
    [end] = events(tmp_path, "end")
    assert end["test_error"] > 0
    assert events(tmp_path, "start")[0]["task"] == f"{HERE}:Scaled"
    assert (tmp_path / "checkpoints" / "best_model.pt").exists()


@table("workers", ["0", "2"])
def test_a_mistake_in_validation_ends_the_process(workers: str, tmp_path: Path) -> None:
    flags = [*REGRESSION[:-1], f"{HERE}:FailsInValidation", "--num-workers", workers, "--steps", "2"]
    command = [sys.executable, "-m", "trainer", *flags, "--device", "cpu", "--output-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "ZeroDivisionError: a mistake" in done.stderr


def test_own_images_are_for_the_trainers_own_tasks(tmp_path: Path) -> None:
    assert train(tmp_path, "--data", f"{HERE}:good_images", "--steps", "3", "--num-workers", "1") == 0
    assert len(step_lines(tmp_path)) == 3


def test_an_own_task_learns_from_the_trainers_own_data(tmp_path: Path) -> None:
    own = ("--data", "digits", "--task", f"{HERE}:Pixels", "--model", f"{HERE}:Autoencoder")
    assert train(tmp_path, *own, "--steps", "30") == 0
    losses = [line["loss"] for line in step_lines(tmp_path)]
    assert losses[-1] < losses[0]


def test_a_model_in_bf16_is_tried_as_it_is_trained(tmp_path: Path) -> None:
    flags = (*REGRESSION[:2], "--model", f"{HERE}:half_network", *REGRESSION[4:], "--precision", "bf16")
    assert train(tmp_path, *flags, "--steps", "3") == 0
    assert len(step_lines(tmp_path)) == 3


def test_a_first_sample_that_is_broken_is_replaced_as_any_other(tmp_path: Path) -> None:
    own = ("--data", f"{HERE}:torn", *REGRESSION[2:])
    with PhaseSession(settings(*own), ALONE, 1, TrainingProgress()) as session:
        assert session.objective.training
    assert train(tmp_path, *own, "--steps", "12") == 0
    assert [event["rank"] for event in events(tmp_path, "sample_skipped")] == [0]


def test_trying_out_a_task_changes_neither_weights_nor_random_numbers() -> None:
    flags = ("--data", "digits", "--task", f"{HERE}:Pixels", "--model", f"{HERE}:Counting", "--device", "cpu")
    chosen = settings(*flags)
    with PhaseSession(chosen, ALONE, 1, TrainingProgress()) as session:
        drawn = torch.rand(3)
        assert session.objective.training
        norm = session.built.model.encode[1]  # type: ignore[union-attr,index]
        assert torch.equal(norm.running_mean, torch.zeros(8))
        assert session.built.model.batches == 0
        with PhaseSession(chosen, ALONE, 1, TrainingProgress()):
            assert torch.equal(torch.rand(3), drawn)


@table(
    ("change", "phrase"),
    [
        ({"data": "missing"}, "has no attribute 'missing'"),
        ({"data": "table", "data_options": {"cout": 3}}, "has no cout; did you mean count?"),
        ({"data": "no_data"}, "returned tuple, not Images, Text or Samples"),
        ({"data": "no_splits"}, "train is list, not a Split"),
        ({"data": "nothing_held_out"}, "held_out has no samples"),
        ({"data": "not_stacked"}, "stack them along the first dimension"),
        ({"data": "raising", "data_dir": "/nowhere"}, "own_code.py:"),
        ({"task": "NoObjective"}, "is no subclass of trainer.tasks.Objective"),
        ({"task": "Weighed"}, "only the model is trained and saved: put bias into it"),
        ({"task": "Rowwise"}, "forward returns (2,), not the mean loss"),
        ({"task": "Infinite"}, "the loss of the first samples is inf"),
        ({"task": "Detached"}, "does not depend on any parameter"),
        ({"data": "unequal"}, "different numbers of samples: features 4, target 3"),
        ({"task": "NoForward"}, "has no forward"),
        ({"task": "NotSummed"}, "measure returns loss of shape (2,), not a sum"),
        ({"task": "CountsNothing"}, "measure counts nothing"),
        ({"task": "OnlyTheLoss"}, "measure returns Tensor: sums of loss and count are missing"),
        ({"task": "OtherMetrics"}, "it measures loss, but metrics says loss, r2"),
        ({"task": "WrongField"}, "KeyError: 'feature'"),
        ({"task": "Scaled", "task_options": {"scael": 1}}, "has no scael; did you mean scale?"),
    ],
)
def test_what_is_wrong_is_said_before_training(change: dict[str, object], phrase: str, tmp_path: Path) -> None:
    chosen = {"data": "table", "task": "Regression", **change}
    flags = [*REGRESSION[2:4]]
    for name, value in chosen.items():
        text = f"{HERE}:{value}" if name in ("data", "task") else json.dumps(value).strip('"')
        flags += [f"--{name.replace('_', '-')}", text]
    with (
        pytest.raises(SettingsError, match=re.escape(phrase)),
        PhaseSession(settings("--output-dir", str(tmp_path), *flags), ALONE, 1, TrainingProgress()),
    ):
        pass


@table(
    ("task", "data", "phrase"),
    [
        ("classify", "float_images", "reads 'image' as torch.float32"),
        ("classify", "unknown_classes", "reads 'label' from 2 to 2, not from 0 to 1"),
        ("lm", "tokens_out_of_range", "reads 'tokens' from 40 to 40, not from 0 to 39"),
        ("classify", "table", "cannot learn from"),
    ],
)
def test_samples_that_the_task_cannot_use_are_refused(task: str, data: str, phrase: str) -> None:
    with (
        pytest.raises(SettingsError, match=re.escape(phrase)),
        PhaseSession(
            settings("--task", task, "--data", f"{HERE}:{data}", "--width", "32"), ALONE, 1, TrainingProgress()
        ),
    ):
        pass


@table(
    ("flags", "phrase"),
    [
        (("--task", "clasify"), "package.module:name of your own code"),
        (("--data", "own"), "package.module:name of your own code"),
        (("--task", f"{HERE}:Regression"), "name data that is one of them"),
        (("--task", f"{HERE}:Regression", "--data", "digits"), "is needed with your own task"),
        (("--data-options", "count=3"), "are for code of your own, not for auto"),
    ],
)
def test_settings_that_do_not_go_with_own_code_are_refused(flags: tuple[str, ...], phrase: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(phrase)):
        settings(*flags)
