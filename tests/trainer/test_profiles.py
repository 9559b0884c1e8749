"""The shipped profiles: their parameters are settings of the trainer, and some of them train, in a size for tests."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.conftest import wait_until
from tests.trainer.instructions import write_chats, write_tokenizer
from tests.trainer.running import PATIENCE_SECONDS, ROOT, events, step_lines
from tests.trainer.test_preparing import is_alive
from trainer.__main__ import main
from trainer.checkpoints import load
from trainer.config import from_arguments
from trainer.data import load_data
from trainer.models import build

PROFILES = ROOT / "profiles"

ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def read(name: str) -> dict[str, Any]:
    profile: dict[str, Any] = yaml.safe_load((PROFILES / f"{name}.yaml").read_text())
    return profile


def params(name: str) -> dict[str, Any]:
    """The parameters with their defaults, which are written short or long."""
    given = read(name)["params"].items()
    return {key: value["default"] if isinstance(value, dict) else value for key, value in given}


def flags(values: dict[str, Any]) -> list[str]:
    """As a launcher hands them over: text for everything, nothing for null."""
    words: list[str] = []
    for key, value in values.items():
        if value is not None:
            text = json.dumps(value) if isinstance(value, bool | dict) else str(value)
            words += [f"--{key.replace('_', '-')}", text]
    return words


# --- small data of each kind ------------------------------------------------------------------------------------------


def pictures(folder: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 2)):
        for kind in ("cat", "dog"):
            (folder / part / kind).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / kind / f"{number}.png")


def chats(folder: Path) -> None:
    write_chats(folder / "chats.jsonl", 80)
    write_tokenizer(folder.parent / "tokenizer")


# What makes each profile small, besides its data.
SMALL: dict[str, tuple[Callable[[Path], None] | None, dict[str, Any]]] = {
    "vit-finetune": (pictures, {"image_size": 32, "model_options": ENCODER}),
    "smollm-chat": (
        chats,
        {"context": 64, "model_options": ENCODER | {"num_key_value_heads": 1}, "answer_every": 2, "answer_tokens": 4},
    ),
}


def small(name: str, tmp_path: Path) -> list[str]:
    """The flags of a profile for three small steps on the CPU, with data of its kind."""
    make, sizes = SMALL[name]
    values = params(name) | {"device": "cpu", "steps": 3, "batch_size": 2, "grad_accum": 2, "checkpoint_every": 2}
    values |= {"num_workers": 0, **sizes}
    if make is not None:
        values["data_dir"] = tmp_path / "data"
        values["data_dir"].mkdir()
        make(values["data_dir"])
    if "tokenizer" in values:
        values["tokenizer"] = tmp_path / "tokenizer"
    return flags(values)


def assert_trained(name: str, output: Path) -> dict[str, Any]:
    """Three steps with their losses, and a checkpoint where the profile says that they are; its content."""
    lines = step_lines(output)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(math.isfinite(line["loss"]) and line["samples_per_s"] > 0 for line in lines)
    assert events(output, "end") and math.isfinite(events(output, "end")[0]["test_loss"])
    found = sorted((output / "checkpoints").glob(read(name)["checkpoints"]["pattern"]))
    assert [path.name for path in found] == ["step_00000002.pt", "step_00000003.pt"]
    state = load(found[-1])
    assert state["step"] == 3 and state["config"]["model"] == params(name).get("model", "auto")
    return state


# --- they train -------------------------------------------------------------------------------------------------------


def test_the_chat_profile_shows_answers_and_ends_in_a_model_that_answers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output-dir", str(tmp_path / "out"), *small("smollm-chat", tmp_path), "--export", "last"]) == 0
    (prepared,) = events(tmp_path / "out", "prepared")
    assert prepared["documents"] == 80
    answers = events(tmp_path / "out", "answer")
    assert {one["step"] for one in answers} == {2} and all(one["prompt"].startswith("user") for one in answers)
    (exported,) = events(tmp_path / "out", "export")
    capfd.readouterr()
    prompt = answers[0]["prompt"].removeprefix("user\n").removesuffix("assistant\n").strip()
    assert main(["sample", str(tmp_path / "out"), "--prompt", prompt, "--tokens", "5"]) == 0
    own = capfd.readouterr().out
    assert answer_of(Path(exported["path"]), prompt) + "\n" == own


def answer_of(folder: Path, prompt: str) -> str:
    """What transformers answers with an exported folder alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    messages = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    tokens = model.generate(asked, max_new_tokens=5, do_sample=False)[0, asked.shape[1] :]
    assert len(tokens)
    answer: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return answer


@pytest.mark.long
def test_the_chat_profile_killed_in_preparing_and_in_training_ends_in_the_same_model(tmp_path: Path) -> None:
    words = small("smollm-chat", tmp_path)
    for number in range(40):  # so many slices that the kill leaves some of them
        write_chats(tmp_path / "data" / f"{number:02d}.jsonl", 30 + number)
    # In the foreground, so that a checkpoint is there at the second kill, however slow the disk is.
    words += ["--steps", "9", "--validate-every", "3", "--resume", "auto", "--async-checkpoints", "false"]

    def start(output: Path, inject: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trainer", "--output-dir", str(output), *words, "--inject", inject]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    journal = killed / "tokens" / "journal.jsonl"
    process = start(killed, "kill@step=6")
    try:
        wait_until(lambda: journal.is_file() and journal.read_text().count("\n") > 4, PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL and not (killed / "tokens" / "meta.json").exists()
    wait_until(lambda: not is_alive(process.pid), PATIENCE_SECONDS, "the end of its own processes with it")
    assert start(killed, "kill@step=6").wait() == -signal.SIGKILL
    assert step_lines(killed)[-1]["step"] == 5 and not (killed / "hf").exists()
    assert start(killed, "kill@step=6").wait() == 0
    assert start(undisturbed, "none").wait() == 0

    assert [event["step"] for event in events(killed, "resume")] == [4] and not events(undisturbed, "resume")
    for part, least in (("tokens", 40), ("hf", 4)):
        one, other = (
            {path.name: path.read_bytes() for path in (run / part).iterdir() if path.suffix not in ("", ".jsonl")}
            for run in (killed, undisturbed)  # a journal has its lines in the order in which slices were finished
        )
        assert one == other and len(one) > least
    assert answer_of(killed / "hf", "Count from 2.") == answer_of(undisturbed / "hf", "Count from 2.")


def test_fine_tuning_begins_with_the_weights_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = small("vit-finetune", tmp_path)
    settings, _ = from_arguments([*words, "--weights", ""], {})
    before: Any = build(settings.model_copy(update={"seed": 1}), load_data(settings)).model
    before.inner.save_pretrained(tmp_path / "weights")
    slow = ("--lr", "1e-9", "--weight-decay", "0", "--ema", "0", "--weights", str(tmp_path / "weights"))
    assert main(["--output-dir", str(tmp_path / "out"), *words, *slow]) == 0
    after = assert_trained("vit-finetune", tmp_path / "out")["model"]
    stored = before.state_dict()
    assert set(after) == set(stored)
    for name, tensor in stored.items():
        assert after[name].allclose(tensor, atol=1e-6), name
    assert "start fresh" not in capsys.readouterr().out
