"""Settings that meet in one run, by pairs: every value of one setting with every value of every other one."""

from __future__ import annotations

import faulthandler
import functools
import itertools
import json
import random
from pathlib import Path
from unittest.mock import patch

import pytest
import transformers

from tests.trainer.ranks import Ranks
from tests.trainer.running import events, settings, step_lines, train_on, train_until
from trainer.checkpoints import ResumeChoice, choose, load
from trainer.data import load_data
from trainer.world import World

FACTORS: dict[str, tuple[str, ...]] = {
    "phases": ("one", "two", "fewer ranks first", "fewer ranks between"),
    "length": ("steps", "epochs"),
    "task": ("built in", "own"),
    "parallel": ("ddp", "zero1", "fsdp", "local_sgd"),
    "writing": ("sync", "async"),
    "files": ("whole", "sharded"),
    "packed": ("none", "zstd", "gzip"),
    "averaged": ("weights", "ema"),
    "optimizer": ("adamw", "muon"),
    "batch": ("given", "auto"),
    "validated": ("at the end", "for the best"),
    "exported": ("nothing", "last"),
    "trained": ("everything", "adapters"),
    "recomputed": ("nothing", "all but products"),
    "garbage": ("whenever", "every third step"),
    "stop timeout": ("25", "8"),
    "end": ("done", "stopped"),
}
PHASES = {"one": [2], "two": [2, 2], "fewer ranks first": [1, 2], "fewer ranks between": [2, 1, 2]}
OWN = "tests.trainer.own_code"
SMALL_GPT2 = ["--task=lm", "--context=16", "--model=gpt2", "--model-options=n_embd=32,n_head=2,n_layer=2"]

Case = dict[str, str]


def allowed(case: Case) -> bool:
    """Sharded files are FSDP's, Muon is not; local SGD has no averages; phases have steps; some need GPT-2."""
    spread = case["parallel"] == "fsdp"
    if case["files"] == "sharded" and not spread:
        return False
    if case["optimizer"] == "muon" and spread:
        return False
    if case["parallel"] == "local_sgd" and case["averaged"] == "ema":
        return False
    if case["length"] == "epochs" and case["phases"] != "one":
        return False
    return case["task"] == "built in" or not needs_gpt2(case)


def needs_gpt2(case: Case) -> bool:
    """Return whether a setting of the case is for models of transformers, or for their blocks."""
    return case["optimizer"] == "muon" or case["exported"] != "nothing" or case["trained"] == "adapters"


def pairs_of(case: Case) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(sorted(case.items()), 2))


def cases() -> list[Case]:
    """Few cases with all pairs that an allowed case has: of many drawn ones, each next has the most still missing."""
    draw = random.Random(0)
    drawn = [{name: draw.choice(values) for name, values in FACTORS.items()} for _ in range(1500)]
    drawn = [case for case in drawn if allowed(case)]
    pairs = [pairs_of(case) for case in drawn]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(drawn)), key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        chosen.append(drawn[best])
    return chosen


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that adapters are trained over."""
    folder = tmp_path_factory.mktemp("base")
    config = transformers.GPT2Config(n_embd=32, n_head=2, n_layer=2, n_positions=16, vocab_size=256)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def flags_of(case: Case, steps: int, base: Path) -> list[str]:
    sizes = PHASES[case["phases"]]
    phases = [
        {
            "name": f"phase{number}",
            "steps": steps if number == len(sizes) - 1 else 3,
            "ranks": 0 if ranks == 2 else ranks,
            "parallel": case["parallel"],
            "sharded_checkpoints": case["files"] == "sharded",
        }
        for number, ranks in enumerate(sizes)
    ]
    options = {
        "packed": ["--checkpoint-compression", case["packed"]],
        "writing": ["--async-checkpoints"],
        "averaged": ["--ema", "0.9"],
        "optimizer": ["--optimizer", "muon", *SMALL_GPT2],
        "batch": ["--batch-size", "auto", "--max-batch-size", "4"],
        "validated": ["--validate-every", "2", "--validate-samples", "8", "--best-checkpoint"],
        "exported": ["--export", "last", *SMALL_GPT2],
        "trained": ["--lora", "2", "--lora-modules", "c_attn,c_proj", "--weights", str(base), *SMALL_GPT2],
        "recomputed": ["--gradient-checkpointing", "operations"],
        "garbage": ["--gc-every", "3"],
        "task": ["--data", "digits", "--task", f"{OWN}:Pixels", "--model", f"{OWN}:Autoencoder"],
    }
    chosen = [flag for name, flags in options.items() if case[name] != FACTORS[name][0] for flag in flags]
    length = ["--phases", json.dumps(phases)]
    if case["length"] == "epochs":
        # Digits have 1 437 samples to train on, Python's source more windows: a share of them is so many steps.
        length = ["--epochs", str(steps * 24 / samples_of(case)), "--samples-per-step", "24"]
        length += ["--parallel", case["parallel"]]
        if case["files"] == "sharded":
            length.append("--sharded-checkpoints")
    common = ["--checkpoint-every", "2", "--average-every", "2", "--stop-timeout", case["stop timeout"]]
    return [*length, *common, "--validate-every", "0", *chosen]


def samples_of(case: Case) -> int:
    """Samples in an epoch of what a case trains on."""
    return samples_of_data(is_text=needs_gpt2(case))


@functools.cache
def samples_of_data(*, is_text: bool) -> int:
    return len(load_data(settings(*SMALL_GPT2 if is_text else ())).train)


def armed_clocks(world: World, output: Path, *flags: str) -> set[float]:
    """Train until rank 1 alone is asked to stop, also where it waits. Returns this rank's timeouts of stops."""
    armed: set[float] = set()
    with patch.object(faulthandler, "dump_traceback_later", lambda seconds, **_: armed.add(seconds)):
        train_until(world, output, 8, *flags, signalled=(1,))
    return armed


ALL = cases()


def nearest(wanted: Case) -> Case:
    """The case with the most of these values."""
    return max(ALL, key=lambda case: sum(case[name] == value for name, value in wanted.items()))


QUICK = (
    nearest({"parallel": "fsdp", "batch": "auto", "trained": "adapters"}),
    nearest({"task": "own", "length": "epochs", "end": "done"}),
)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.long]) for case in ALL],
    ids=lambda case: ", ".join(case.values()),
)
def test_a_run_ends_with_a_checkpoint_that_one_process_can_read(
    case: Case, base: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    if case["end"] == "stopped":
        armed = two_ranks.run(armed_clocks, tmp_path, *flags_of(case, 3000, base))
        assert armed[1] == {float(case["stop timeout"])}
        [stop] = events(tmp_path, "stop")
        last = stop["step"]
        assert 8 <= last < 3000
    else:
        two_ranks.run(train_on, tmp_path, *flags_of(case, 3, base))
        last = 3 * len(PHASES[case["phases"]])
        assert len(events(tmp_path, "end")) == 1
        file = "adapter_model" if case["trained"] == "adapters" else "model"
        assert (tmp_path / "hf" / f"{file}.safetensors").exists() == (case["exported"] == "last")
    assert [line["step"] for line in step_lines(tmp_path)] == list(range(1, last + 1))
    assert bool(events(tmp_path, "batch_found")) == (case["batch"] == "auto")
    assert any((tmp_path / "checkpoints").glob("best_model.*")) == (case["validated"] == "for the best")
    choice: ResumeChoice = choose("auto", tmp_path / "checkpoints")
    assert choice.path is not None
    assert not choice.rejected
    state = load(choice.path)
    assert state["step"] == last
    assert len(state["model"]) > 3
    assert (state["base"] is not None) == (case["trained"] == "adapters")
    assert (len(state["ema"]) > 0) == (case["averaged"] == "ema")
