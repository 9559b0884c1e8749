"""Settings that meet in one run, by pairs: every value of one setting with every value of every other one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.trainer.ranks import Ranks
from tests.trainer.running import events, step_lines, train_on
from tests.trainer.test_run import train_until
from trainer.checkpoints import ResumeChoice, choose, load

FACTORS: dict[str, tuple[str, ...]] = {
    "phases": ("one", "fewer ranks first", "fewer ranks last", "fewer ranks between"),
    "parallel": ("ddp", "zero1", "fsdp"),
    "writing": ("sync", "async"),
    "files": ("whole", "sharded"),
    "compressed": ("plain", "gzip"),
    "averaged": ("weights", "ema"),
    "optimizer": ("adamw", "muon"),
    "recomputed": ("nothing", "all but products"),
    "garbage": ("whenever", "every third step"),
    "end": ("done", "stopped"),
}

PHASES = {"one": [2, 2], "fewer ranks first": [1, 2], "fewer ranks last": [2, 1], "fewer ranks between": [2, 1, 2]}

Case = dict[str, str]


def allowed(case: Case) -> bool:
    """Sharded files are FSDP's, and Muon is not for it."""
    spread = case["parallel"] == "fsdp"
    return (case["files"] == "whole" or spread) and not (case["optimizer"] == "muon" and spread)


def pairs_of(case: Case) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}


def cases() -> list[Case]:
    """Few cases that have all pairs which any allowed case has: each next one has the most that are still missing."""
    every = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
    every = [case for case in every if allowed(case)]
    missing = set().union(*map(pairs_of, every))
    chosen = []
    while missing:
        best = max(every, key=lambda case: len(pairs_of(case) & missing))
        missing -= pairs_of(best)
        chosen.append(best)
    return chosen


def flags_of(case: Case, steps: int) -> list[str]:
    phases = [
        {"name": f"phase{number}", "steps": steps if last else 3, "ranks": 0 if ranks == 2 else ranks}
        for number, ranks in enumerate(PHASES[case["phases"]])
        for last in [number == len(PHASES[case["phases"]]) - 1]
    ]
    for phase in phases:
        phase["parallel"] = case["parallel"]
        phase["sharded_checkpoints"] = case["files"] == "sharded"
    flags = ["--phases", json.dumps(phases), "--checkpoint-every", "2", "--validate-every", "0"]
    flags += ["--async-checkpoints"] if case["writing"] == "async" else []
    flags += ["--gzip-checkpoints"] if case["compressed"] == "gzip" else []
    flags += [
        "--optimizer",
        case["optimizer"],
        *(["--task", "lm", "--width", "32"] if case["optimizer"] == "muon" else []),
    ]
    flags += ["--gradient-checkpointing", "operations"] if case["recomputed"] != "nothing" else []
    flags += ["--gc-every", "3"] if case["garbage"] != "whenever" else []
    return flags + (["--ema", "0.9"] if case["averaged"] == "ema" else [])


ALL = cases()
QUICK = next(case for case in ALL if (case["parallel"], case["end"]) == ("fsdp", "stopped"))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case is QUICK else [pytest.mark.long]) for case in ALL],
    ids=lambda case: ", ".join(case.values()),
)
def test_a_run_ends_with_a_checkpoint_that_one_process_can_read(case: Case, two_ranks: Ranks, tmp_path: Path) -> None:
    if case["end"] == "stopped":
        # Rank 1 alone is asked, also where it waits.
        two_ranks.run(train_until, tmp_path, 8, *flags_of(case, 3000), asked=(1,))
        [stop] = events(tmp_path, "stop")
        last = stop["step"]
        assert 8 <= last < 3000
    else:
        two_ranks.run(train_on, tmp_path, *flags_of(case, 3))
        last = 3 * len(PHASES[case["phases"]])
        assert len(events(tmp_path, "end")) == 1
    assert [line["step"] for line in step_lines(tmp_path)] == list(range(1, last + 1))
    choice: ResumeChoice = choose("auto", tmp_path / "checkpoints")
    assert choice.path is not None and not choice.rejected
    state = load(choice.path)
    assert state["step"] == last and len(state["model"]) > 5
    assert (len(state["ema"]) > 0) == (case["averaged"] == "ema")
