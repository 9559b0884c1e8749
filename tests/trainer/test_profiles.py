"""The shipped profiles: their parameters are settings of the trainer, and each of them trains, in a size for tests, on
its own kind of data. The plain script prints what its patterns expect."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from PIL import Image
from pyarrow import parquet

from tests.trainer.instructions import write_chats, write_tokenizer
from tests.trainer.ranks import Ranks
from tests.trainer.running import ROOT, events, step_lines, train_on
from trainer.__main__ import main
from trainer.checkpoints import load
from trainer.config import Settings, as_plain, from_arguments, unfold
from trainer.data import load_data
from trainer.models import build

PROFILES = ROOT / "profiles"
OF_THE_TRAINER = sorted(path.stem for path in PROFILES.glob("*.yaml") if path.stem != "custom-script")

ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
RESNET = {"hidden_sizes": [16, 16, 16, 16], "embedding_size": 16, "depths": [1, 1, 1, 1]}


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


# --- what they say ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_THE_TRAINER)
def test_every_parameter_is_a_setting_and_all_fit_together(name: str) -> None:
    given = params(name)
    assert set(given) <= set(Settings.model_fields)
    settings, _ = from_arguments(flags(given), {})
    for key in ("batch_size", "lr", "steps"):
        assert getattr(settings, key) == given[key]
    # Half a batch, twice as often, is a size that recovery may ask for.
    smaller = {"batch_size": given["batch_size"] // 2, "grad_accum": given["grad_accum"] * 2}
    halved, _ = from_arguments(flags(given | smaller), {})
    for before, after in zip(unfold(settings), unfold(halved), strict=True):
        assert before.batch_size == 2 * after.batch_size and 2 * before.grad_accum == after.grad_accum


@pytest.mark.parametrize("name", ["digits-ddp", "stdlib-lm"])
def test_the_two_small_ones_are_at_the_trainers_own_defaults(name: str) -> None:
    given = params(name)
    settings = as_plain(from_arguments(flags(given), {})[0])
    default = as_plain(from_arguments(["--task", given["task"]], {})[0])
    differing = {key for key in settings if settings[key] != default[key]}
    assert differing - {"data"} == {"checkpoint_every", "timeout"}  # auto means the same data
    assert given["batch_size"] * given["grad_accum"] == given["batch_size"] * 3 // 4 * (given["grad_accum"] + 1)


def test_the_four_phases_differ() -> None:
    settings, _ = from_arguments(flags(params("contrastive-phases")), {})
    phases = unfold(settings)
    assert [phase.phase for phase in phases] == ["cold_start", "contrastive", "hard_negatives", "stabilisation"]
    assert sum(phase.steps for phase in phases) == 240
    assert [phase.ranks for phase in phases] == [1, 0, 0, 0]
    assert [phase.precision for phase in phases] == ["fp32", "bf16", "bf16", "fp32"]
    assert [(phase.batch_size, phase.grad_accum) for phase in phases] == [(64, 1), (64, 1), (32, 2), (64, 1)]
    assert [phase.hard_negatives > 0 for phase in phases] == [False, False, True, False]
    assert [phase.ema > 0 for phase in phases] == [False, False, False, True]
    assert len({phase.lr for phase in phases}) == 4


# --- small data of each kind ------------------------------------------------------------------------------------------


def cifar(folder: Path) -> None:
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        records = random.integers(0, 256, (6, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(6)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def pictures(folder: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 2)):
        for kind in ("cat", "dog"):
            (folder / part / kind).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / kind / f"{number}.png")


def tokens(folder: Path) -> None:
    for part, count in (("train", 600), ("val", 200)):
        (np.arange(count) % 61).astype("<u2").tofile(folder / f"{part}.bin")


def texts(folder: Path) -> None:
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"The quick brown fox {number} jumps. " * 30)


def rows(folder: Path) -> None:
    table = pa.table({"url": ["a"] * 20, "text": ["A row of words to fill in. " * 5] * 20})
    parquet.write_table(table, folder / "rows.parquet", compression="zstd", row_group_size=10)


def chats(folder: Path) -> None:
    write_chats(folder / "chats.jsonl", 80)
    write_tokenizer(folder.parent / "tokenizer")


# What makes each profile small, besides its data.
SMALL: dict[str, tuple[Callable[[Path], None] | None, dict[str, Any]]] = {
    "digits-ddp": (None, {"width": 8}),
    "stdlib-lm": (None, {"width": 32, "context": 16, "validate_samples": 8}),
    "cifar10-resnet18": (cifar, {"model_options": RESNET}),
    "imagenet-resnet50": (pictures, {"image_size": 32, "model_options": RESNET, "compile": "off"}),
    "vit-finetune": (pictures, {"image_size": 32, "model_options": ENCODER}),
    "gpt2-tokens": (
        tokens,
        {"context": 16, "model_options": {"n_embd": 32, "n_layer": 2, "n_head": 2}, "compile": "off"},
    ),
    "smollm-fsdp": (texts, {"context": 16, "model_options": ENCODER | {"num_key_value_heads": 1}}),
    "smollm-chat": (
        chats,
        {"context": 64, "model_options": ENCODER | {"num_key_value_heads": 1}, "answer_every": 2, "answer_tokens": 4},
    ),
    "bert-mlm": (rows, {"context": 16, "model_options": ENCODER}),
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


@pytest.mark.parametrize(
    "name", ["digits-ddp", "stdlib-lm", "cifar10-resnet18", "imagenet-resnet50", "gpt2-tokens", "smollm-chat"]
)
def test_it_trains_and_its_checkpoint_loads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")  # which a run may set; it goes back afterwards
    assert main(["--output-dir", str(tmp_path / "out"), *small(name, tmp_path)]) == 0
    state = assert_trained(name, tmp_path / "out")
    averaged = params(name).get("ema", 0.0) > 0
    assert bool(state["ema"]) == averaged
    assert (tmp_path / "out" / "checkpoints" / "best_model.pt").exists() == params(name).get("best_checkpoint", False)


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
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(exported["path"], local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(exported["path"], local_files_only=True)
    messages = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    answer = model.generate(asked, max_new_tokens=5, do_sample=False)[0, asked.shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) + "\n" == own


def test_images_may_come_from_parquet(tmp_path: Path) -> None:
    words = small("imagenet-resnet50", tmp_path)
    encoded = [(tmp_path / "data" / "train" / "cat" / f"{number}.png").read_bytes() for number in range(6)]
    folder = tmp_path / "parquet"
    folder.mkdir()
    table = pa.table({"image": [{"bytes": image} for image in encoded] * 3, "label": [0, 1, 0, 1, 0, 1] * 3})
    parquet.write_table(table, folder / "train.parquet", row_group_size=9)
    assert main(["--output-dir", str(tmp_path / "out"), *words, "--data", "parquet", "--data-dir", str(folder)]) == 0
    assert_trained("imagenet-resnet50", tmp_path / "out")


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


def test_the_four_phases_run_on_two_ranks(tmp_path: Path, two_ranks: Ranks) -> None:
    values = params("contrastive-phases") | {"device": "cpu", "steps": 20, "batch_size": 8, "width": 8, "depth": 1}
    two_ranks.run(train_on, tmp_path, *flags(values))
    lines = step_lines(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert [line["phase"] for line in lines] == (
        ["cold_start"] * 3 + ["contrastive"] * 8 + ["hard_negatives"] * 6 + ["stabilisation"] * 3
    )
    assert [line["samples"] for line in lines[:4]] == [8, 16, 24, 40]  # one rank in the first phase, then two
    began = [*events(tmp_path, "start"), *events(tmp_path, "phase")]
    assert [(one["world_size"], one["batch_size"]) for one in began] == [(1, 8), (2, 8), (2, 4), (2, 8)]
    state = load(tmp_path / "checkpoints" / "step_00000020.pt")
    assert state["phase"] == "stabilisation" and state["ema"]


@pytest.mark.parametrize("name", ["smollm-fsdp", "bert-mlm"])
def test_it_trains_on_two_ranks_that_share_the_state(name: str, two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.run(train_on, tmp_path / "out", *small(name, tmp_path))
    state = assert_trained(name, tmp_path / "out")
    shards = tmp_path / "out" / "checkpoints" / "step_00000003.shards"
    assert shards.exists() == (name == "smollm-fsdp")
    assert set(state["optimizer"]) and all(tensor.isfinite().all() for tensor in state["model"].values())


# --- the plain script -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_custom_scripts_output_is_what_its_patterns_expect(tmp_path: Path) -> None:
    profile = read("custom-script")
    command = [sys.executable, str(PROFILES / profile["script"]), "--out", str(tmp_path), "--save-every", "20"]
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    first = subprocess.run([*command, "--iters", "30"], capture_output=True, text=True, check=True, env=environment)
    step, accuracy = (re.compile(pattern) for pattern in profile["metrics"]["patterns"])
    shown = first.stdout.splitlines()
    found = [step.match(line) for line in shown]
    assert [int(match["step"]) for match in found if match] == [10, 20, 30]
    assert all(float(match["loss"]) > 0 and float(match["samples_per_s"]) > 0 for match in found if match)
    last = accuracy.match(shown[-1])
    assert last and float(last["val_accuracy"]) > 0.1
    saved = sorted(path.name for path in tmp_path.glob(profile["checkpoints"]["pattern"]))
    assert saved == ["ckpt_20.pt", "ckpt_30.pt"]

    resume = profile["checkpoints"]["resume"].format(checkpoint=tmp_path / "ckpt_20.pt").split()
    again = subprocess.run(
        [*command, "--iters", "30", *resume], capture_output=True, text=True, check=True, env=environment
    )
    assert [line.partition(":")[0] for line in again.stdout.splitlines() if step.match(line)] == ["iter 30"]
