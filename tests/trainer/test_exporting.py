"""A run's weights as a folder of transformers: the same logits, and answers by its own tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers

from tests.tables import table
from tests.texts import mentions
from tests.trainer.instructions import CONTEXT
from tests.trainer.running import settings, step_lines
from tests.trainer.small_models import LLAMA
from trainer.__main__ import main
from trainer.checkpoints import load
from trainer.data import load_data
from trainer.models import build_model


def flags(tokens: Path, **changes: Any) -> list[str]:
    options = {"task": "lm", "data": "tokens", "data_dir": tokens, "context": CONTEXT, "device": "cpu", "steps": 4}
    options |= {"model": "smollm-135m", "model_options": json.dumps(LLAMA | {"num_key_value_heads": 1})}
    options |= {"validate_samples": 4, "validate_every": 2, "checkpoint_every": 2, "lr": 0.01} | changes
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@pytest.fixture(scope="module")
def finished(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with averaged weights and a best checkpoint, which is not the last."""
    place = tmp_path_factory.mktemp("run")
    best = {"best_checkpoint": "true", "best_metric": "val/perplexity", "ema": 0.9}
    assert main(["--output-dir", str(place), *flags(tokens, **best)]) == 0
    return place


def expected_logits(state: dict[str, Any], tokens: Path, inputs: torch.Tensor, *, averaged: bool) -> torch.Tensor:
    """The logits of the trainer's own network with the weights of a checkpoint."""
    chosen = settings(*flags(tokens))
    model = build_model(chosen, load_data(chosen)).eval()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state["ema"][name] if averaged else state["model"][name])
        logits: torch.Tensor = model(inputs)
    return logits


READ = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, inputs = sys.argv[1], torch.load(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
with torch.no_grad():
    torch.save(model(inputs).logits, sys.argv[3])
asked = tokenizer.apply_chat_template([{"role": "user", "content": "Count from 2."}], add_generation_prompt=True)
assert "trainer" not in sys.modules
print(model.generation_config.eos_token_id, tokenizer.decode(asked["input_ids"]))
"""


@pytest.mark.long
@table("weights", ["last", "ema", "best"])
def test_transformers_reads_the_same_logits_from_an_export(
    weights: str, finished: Path, tokens: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    assert main(["export", str(finished), "--to", "hf", "--out", str(out), "--weights", weights]) == 0
    inputs = torch.randint(0, 384, (2, CONTEXT), generator=torch.Generator().manual_seed(1))
    torch.save(inputs, tmp_path / "inputs.pt")
    command = [sys.executable, "-c", READ, str(out), str(tmp_path / "inputs.pt"), str(tmp_path / "logits.pt")]
    read = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    assert mentions(read.stdout, "[0, 2] <|im_start|>user\n", "Count from 2.<|im_end|>\n<|im_start|>assistant")
    checkpoint = finished / "checkpoints" / ("best_model.pt" if weights == "best" else "step_00000004.pt")
    last, averaged = (
        expected_logits(load(checkpoint), tokens, inputs, averaged=averaged) for averaged in (False, True)
    )
    assert not torch.equal(last, averaged), "all weights are the same, so this shows nothing"
    assert torch.equal(torch.load(tmp_path / "logits.pt"), last if weights == "last" else averaged)


def test_what_cannot_be_exported_is_refused_before_the_first_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = ["--model", "resnet18", "--model-options", '{"hidden_sizes": [8, 8], "depths": [1, 1]}', "--device", "cpu"]
    out = ["--output-dir", str(tmp_path), "--steps", "1", "--batch-size", "4", "--export", "last"]
    for model in (small, ["--model", "cnn", "--width", "8"]):
        assert main([*model, *out, "--data", "digits"]) == 2
        assert "--export" in capfd.readouterr().err
    flags = ["--task", "contrastive", "--data", "synthetic", "--image-size", "72", "--synthetic-samples", "64"]
    contrastive = [*small, *out, *flags]
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "thesis.txt").touch()
    assert main(contrastive) == 2
    (tmp_path / "hf" / "thesis.txt").unlink()
    with patch.object(torch.random, "fork_rng", side_effect=ImportError):  # as some networks do when they are rebuilt
        assert main(contrastive) == 2
        assert step_lines(tmp_path) == []
        assert main([*contrastive, "--export", "none"]) == 0
    assert main(contrastive) == 0
    exported = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "hf").state_dict()
    trained = load(tmp_path / "checkpoints" / "step_00000001.pt")["model"]
    assert all(torch.equal(tensor, trained[f"backbone.inner.{name}"]) for name, tensor in exported.items())


def test_an_export_is_replaced_and_nothing_else_is(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(finished), "--to", "hf", "--out"]
    out = tmp_path / "hf"
    mine = tmp_path / "mine" / "thesis.txt"
    assert main([*command, str(out)]) == 0
    first = (out / "model.safetensors").read_bytes()
    (out / "left over").touch()
    assert main([*command, str(out)]) == 0
    assert (out / "model.safetensors").read_bytes() == first
    assert not (out / "left over").exists()
    assert not list(tmp_path.glob(".hf*"))
    mine.parent.mkdir()
    mine.touch()
    assert main([*command, str(mine.parent)]) == 2
    assert mine.exists()
    assert "no earlier export" in capfd.readouterr().err


def test_a_checkpoint_answers_prompts(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def answers(source: Path, *flags: str) -> str:
        assert main(["sample", str(source), "--prompt", "Count from 2.", "--tokens", "8", *flags]) == 0
        return capfd.readouterr().out

    checkpoint = finished / "checkpoints" / "step_00000004.pt"
    assert answers(checkpoint, "--prompt", "Go on.") == answers(finished, "--prompt", "Go on.")
    drawn = [answers(checkpoint, "--temperature", "1.5", "--plain", "--seed", seed) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert main(["sample", str(checkpoint), "--prompt", "word " * 90]) == 2
    assert "sees 64 at once" in capfd.readouterr().err
