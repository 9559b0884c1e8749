"""The shipped profiles: their parameters are settings of the trainer, and each trains, in a size for tests."""

from __future__ import annotations

import itertools
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import transformers
import yaml
from PIL import Image
from pyarrow import parquet

from tests.conftest import wait_until
from tests.trainer.instructions import write_chats, write_tokenizer
from tests.trainer.ranks import Ranks
from tests.trainer.running import PATIENCE_SECONDS, ROOT, events, is_alive, step_lines, torchrun, train_on
from trainer.__main__ import main
from trainer.checkpoints import load
from trainer.config import from_arguments
from trainer.data import load_data
from trainer.models import build

PROFILES = ROOT / "profiles"

RESNET = {"hidden_sizes": [16, 16, 16, 16], "embedding_size": 16, "depths": [1, 1, 1, 1]}
ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
LLAMA = ENCODER | {"num_key_value_heads": 1}


def read(name: str) -> dict[str, Any]:
    profile: dict[str, Any] = yaml.safe_load((PROFILES / f"{name}.yaml").read_text())
    return profile


def params(name: str) -> dict[str, Any]:
    """The parameters with their defaults, which are written short or long."""
    parameters = read(name)["params"].items()
    return {key: value["default"] if isinstance(value, dict) else value for key, value in parameters}


def flags(values: dict[str, Any]) -> list[str]:
    """As a launcher hands them over: text for everything, nothing for null."""
    arguments: list[str] = []
    for key, value in values.items():
        if value is not None:
            text = json.dumps(value) if isinstance(value, bool | dict) else str(value)
            arguments += [f"--{key.replace('_', '-')}", text]
    return arguments


# --- small data of each kind ------------------------------------------------------------------------------------------


def cifar(folder: Path) -> None:
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        records = np.random.default_rng(0).integers(0, 256, (6, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(6)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def pictures(folder: Path) -> None:
    random = np.random.default_rng(0)
    for part, kind, number in itertools.product(("train", "val"), ("cat", "dog"), range(6)):
        (folder / part / kind).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / part / kind / f"{number}.png")


def token_files(folder: Path) -> None:
    for part, count in (("train", 600), ("val", 200)):
        (np.arange(count) % 61).astype("<u2").tofile(folder / f"{part}.bin")


def texts(folder: Path) -> None:
    (folder / "fox.txt").write_text("The quick brown fox jumps. " * 100)


def rows(folder: Path) -> None:
    table = pa.table({"url": ["a"] * 20, "text": ["A row of words to fill in. " * 5] * 20})
    parquet.write_table(table, folder / "rows.parquet", compression="zstd", row_group_size=10)


def chats(folder: Path) -> None:
    write_chats(folder / "chats.jsonl", 80)
    write_tokenizer(folder.parent / "tokenizer")


def chats_and_weights(folder: Path) -> None:
    chats(folder)
    sizes = {"vocab_size": 384, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(**LLAMA, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder.parent / "weights")


# What makes each profile small: data of its kind, and sizes.
SMALL: dict[str, tuple[Callable[[Path], None] | None, dict[str, Any]]] = {
    "bert-mlm": (rows, {"context": 16, "model_options": ENCODER}),
    "cifar10-resnet18": (cifar, {"model_options": RESNET}),
    "contrastive-phases": (None, {"width": 8, "depth": 1, "steps": 20, "batch_size": 8, "grad_accum": 1}),
    "digits-ddp": (None, {"width": 8}),
    "gpt2-tokens": (token_files, {"context": 16, "model_options": {"n_embd": 32, "n_layer": 2, "n_head": 2}}),
    "imagenet-resnet50": (pictures, {"image_size": 32, "model_options": RESNET}),
    "smollm-chat": (chats, {"context": 64, "model_options": LLAMA, "answer_every": 2, "answer_tokens": 4}),
    "smollm-fsdp": (texts, {"context": 16, "model_options": LLAMA}),
    "smollm-lora": (chats_and_weights, {"context": 64, "model_options": LLAMA, "answer_every": 2, "answer_tokens": 4}),
    "stdlib-lm": (None, {"width": 32, "context": 16, "validate_samples": 8}),
    "vit-finetune": (pictures, {"image_size": 32, "model_options": ENCODER, "weights": ""}),
}


def small(name: str, tmp_path: Path, **changes: Any) -> list[str]:
    """The flags of a profile for three small steps on the CPU, with data of its kind."""
    make, sizes = SMALL[name]
    values = params(name) | {"device": "cpu", "steps": 3, "batch_size": 2, "grad_accum": 2, "checkpoint_every": 2}
    values |= {"num_workers": 0, "compile": "off", **sizes, **changes}
    if make is not None:
        values["data_dir"] = tmp_path / "data"
        values["data_dir"].mkdir()
        make(values["data_dir"])
    if "tokenizer" in values:
        values["tokenizer"] = tmp_path / "tokenizer"
    if values.get("weights"):
        values["weights"] = tmp_path / "weights"
    return flags(values)


def is_trained(name: str, output: Path) -> bool:
    """Check what a run of the profile has left."""
    steps = 20 if name == "contrastive-phases" else 3
    lines = [line for line in step_lines(output) if not line["rank"]]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(math.isfinite(line["loss"]) and line["samples_per_s"] > 0 for line in lines)
    assert math.isfinite(events(output, "end")[0]["test_loss"])
    # The checkpoint lies where the profile looks for checkpoints.
    last = max((output / "checkpoints").glob(read(name)["checkpoints"]["pattern"]))
    state = load(last)
    assert state["step"] == steps
    assert state["config"]["model"] == params(name).get("model", "auto")
    assert bool(state["ema"]) == (params(name).get("ema", 0.0) > 0 or name == "contrastive-phases")
    assert (output / "checkpoints" / "best_model.pt").exists() == params(name).get("best_checkpoint", False)
    assert last.with_suffix(".shards").exists() == params(name).get("sharded_checkpoints", False)
    return (output / "hf").exists() == ("export" in params(name))


def answer_of(folder: Path, prompt: str) -> str:
    """The answer of transformers with an exported folder alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    messages = [{"role": "user", "content": prompt}]
    prompt_tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    tokens = model.generate(prompt_tokens, max_new_tokens=5, do_sample=False)[0, prompt_tokens.shape[1] :]
    assert len(tokens)
    answer: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return answer


# --- they train -------------------------------------------------------------------------------------------------------


def test_there_is_a_small_size_of_every_profile_of_the_trainer() -> None:
    profiles = [path.stem for path in PROFILES.glob("*.yaml") if read(path.stem).get("module") == "trainer"]
    assert sorted(SMALL) == sorted(profiles)


@pytest.mark.parametrize("name", SMALL)
def test_every_profile_trains_on_two_ranks(name: str, two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.run(train_on, tmp_path / "out", *small(name, tmp_path))
    assert is_trained(name, tmp_path / "out")


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_every_profile_trains_under_torchrun(name: str, tmp_path: Path) -> None:
    """Compiled where the profile says so, and with a process that reads ahead."""
    arguments = small(name, tmp_path, num_workers=1, compile=params(name).get("compile", "off"))
    code, output = torchrun("-m", "trainer", "--output-dir", str(tmp_path / "out"), *arguments)
    assert code == 0, output
    assert is_trained(name, tmp_path / "out")


def test_the_chat_profile_shows_answers_and_ends_in_a_model_that_answers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output-dir", str(tmp_path / "out"), *small("smollm-chat", tmp_path), "--export", "last"]) == 0
    (prepared,) = events(tmp_path / "out", "prepared")
    assert prepared["documents"] == 80
    answers = events(tmp_path / "out", "answer")
    assert {answer["step"] for answer in answers} == {2}
    assert all(answer["prompt"].startswith("user") for answer in answers)
    (exported,) = events(tmp_path / "out", "export")
    capfd.readouterr()
    prompt = answers[0]["prompt"].removeprefix("user\n").removesuffix("assistant\n").strip()
    assert main(["sample", str(tmp_path / "out"), "--prompt", prompt, "--tokens", "5"]) == 0
    answer = capfd.readouterr().out
    assert answer_of(Path(exported["path"]), prompt) + "\n" == answer


@pytest.mark.long
def test_the_chat_profile_killed_in_preparing_and_in_training_ends_in_the_same_model(tmp_path: Path) -> None:
    # Written in the foreground, so that a checkpoint is there at the second kill, however slow the disk is.
    arguments = small("smollm-chat", tmp_path, steps=9, validate_every=3, resume="auto", async_checkpoints=False)
    for number in range(40):  # so many slices that the kill leaves some of them
        write_chats(tmp_path / "data" / f"{number:02d}.jsonl", 30 + number)

    def start(output: Path, inject: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trainer", "--output-dir", str(output), *arguments, "--inject", inject]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    killed = tmp_path / "killed"
    undisturbed = tmp_path / "undisturbed"
    journal = killed / "tokens" / "journal.jsonl"
    process = start(killed, "kill@step=6")
    try:
        wait_until(lambda: journal.is_file() and journal.read_text().count("\n") > 4, PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "tokens" / "meta.json").exists()
    wait_until(lambda: not is_alive(process.pid), PATIENCE_SECONDS, "the end of its own processes with it")
    assert start(killed, "kill@step=6").wait() == -signal.SIGKILL
    assert step_lines(killed)[-1]["step"] == 5
    assert not (killed / "hf").exists()
    assert start(killed, "kill@step=6").wait() == 0
    assert start(undisturbed, "none").wait() == 0

    assert [event["step"] for event in events(killed, "resume")] == [4]
    assert not events(undisturbed, "resume")
    for part, least in (("tokens", 40), ("hf", 4)):
        first, second = (
            {path.name: path.read_bytes() for path in (run / part).iterdir() if path.suffix not in ("", ".jsonl")}
            for run in (killed, undisturbed)  # a journal has its lines in the order in which slices were finished
        )
        assert first == second
        assert len(first) > least
    assert answer_of(killed / "hf", "Count from 2.") == answer_of(undisturbed / "hf", "Count from 2.")


def test_fine_tuning_begins_with_the_weights_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = small("vit-finetune", tmp_path)
    settings, _ = from_arguments(arguments, {})
    before: Any = build(settings.model_copy(update={"seed": 1}), load_data(settings)).model
    before.inner.save_pretrained(tmp_path / "weights")
    slow = ("--lr", "1e-9", "--weight-decay", "0", "--ema", "0", "--weights", str(tmp_path / "weights"))
    assert main(["--output-dir", str(tmp_path / "out"), *arguments, *slow]) == 0
    after = load(tmp_path / "out" / "checkpoints" / "step_00000003.pt")["model"]
    stored = before.state_dict()
    assert set(after) == set(stored)
    for name, tensor in stored.items():
        assert after[name].allclose(tensor, atol=1e-6), name
    assert "start fresh" not in capsys.readouterr().out
