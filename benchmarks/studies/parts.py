"""The parts of the measurement: what happens in each, and what it gives.

Sampling and the many planted studies run in this process; everything else with a real agent and real processes.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, machine_load, memory
from benchmarks.scene import wait_until
from benchmarks.studies import moving, planted, simulated
from benchmarks.studies.lab import PLANTED_SPACE, Lab, lab
from gputui.runs.identity import is_alive
from gputui.studies.spec import SamplerKind, SamplerSpec, StudySpec, missing_library
from tests.faults.chaos.studies import StudyChaos

SAMPLERS: tuple[SamplerKind, ...] = ("tpe", "random", "qmc", "cmaes", "nsga2", "gp")


@dataclass(frozen=True)
class Size:
    """The size of a measurement. ``seeds`` are planted populations, ``studies`` planted studies;
    ``live_paced``: the members of the real population wait for the first decisions, whatever the
    machine's pace; ``drill_seed`` decides the kills."""

    trial_seconds: float = 120.0
    seeds: int = 10
    studies: int = 20
    live_steps: int = 400
    live_paced: bool = False
    kills: int = 200
    drill_trials: int = 32
    drill_steps: int = 200
    drill_seed: int = 1
    asked_trials: int = 64
    samplers: tuple[SamplerKind, ...] = SAMPLERS


# --- overhead


def overhead(size: Size, *, trials: int = 16, slots: int = 4) -> dict[str, Any]:
    """A study of equally long trials from the command that begins it to its end, beside the time that the trials
    themselves take; memory and processor time of the study's process meanwhile."""
    step_seconds = size.trial_seconds / planted.STEPS
    with lab(slots) as home:
        began_at = time.time()
        study = home.begin(
            f"profile: ./planted.yaml\n{PLANTED_SPACE}\nobjective: {{metric: loss}}\nsampler: tpe\n"
            f"budget: {{trials: {trials}}}\nparams: {{seconds: {step_seconds}}}\n"
        )
        process = wait_until_is(lambda: home.study_process(study), "the study's process")
        rss: list[int] = []
        cpu = 0.0
        deadline = time.time() + trials / slots * size.trial_seconds * 3 + 120
        while home.study_state(study) == "running" and time.time() < deadline:
            if is_alive(process):
                rss.append(memory([process.pid]).rss_bytes)
                cpu = cpu_seconds(process.pid)
            time.sleep(0.5)
        home.finish_study(study, 1.0)
        ended = home.rows("SELECT ended_at FROM studies WHERE study_id = ?", study)[0][0]
        wait_until(lambda: home.study_process(study) is None, what="the end of the study's process")
        states = [trial["state"] for trial in home.trials(study)]
        assert states == ["complete"] * trials, states
        gaps = home.rows(
            "SELECT avg(a.ended_at - a.started_at) FROM attempts AS a JOIN runs AS r USING (run_id) "
            "WHERE r.study_id = ?",
            study,
        )[0][0]
    ideal = size.trial_seconds * trials / slots
    wall = ended - began_at
    return {
        "trial_seconds": size.trial_seconds,
        "wall_seconds": wall,
        "overhead_percent": (wall / ideal - 1) * 100,
        "seconds_per_round": (wall - ideal) / (trials / slots),
        "mean_attempt_seconds": gaps,
        "rss_bytes": max(rss),
        "cpu_percent": 100 * cpu / wall,
        "processes_when_over": 0,
    }


def wait_until_is(look: Callable[[], Any], what: str, timeout_seconds: float = 60.0) -> Any:
    """Wait until ``look`` returns something, and return it. Raises TimeoutError."""
    outcome: list[Any] = []

    def has() -> bool:
        outcome[:] = [look()]
        return outcome[0] is not None

    wait_until(has, timeout_seconds, what)
    return outcome[0]


# --- sampling


def sampling(size: Size) -> dict[str, Any]:
    """Asking, reporting and telling, and the memory that it takes, by sampler."""
    figures: dict[str, Any] = {}
    for sampler in size.samplers:
        spec = StudySpec("x", "x", simulated.PLANTED_SPACE, (simulated.LOSS,), SamplerSpec(sampler))
        if (missing := missing_library(spec)) is not None:
            figures[sampler] = {"why_not": missing}
            continue
        argv = [sys.executable, "-m", "benchmarks.studies.asking", sampler, str(size.asked_trials)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
        figures[sampler] = json.loads(done.stdout)
    return figures


# --- pruning


def pruning(size: Size) -> dict[str, Any]:
    """Real DDP trainings on two CPU processes, one after another, of which the hopeless ones are cut short: how long
    it takes until the stop is asked for and carried out, and until the next trial makes its first step."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return {"why_not": "torch or scikit-learn is not installed"}
    text = """
profile: digits-ddp
params: {steps: 90, validate_every: 10}
space: {lr: [0.005, 0.01, 1.0e-7, 2.0e-7, 3.0e-7, 0.02]}
objective: {metric: val/accuracy, direction: maximize}
sampler: grid
pruner: {kind: median, length: steps, rungs: 9, startup: 2}
parallel: 1
"""
    with lab(1) as home:
        study = home.begin(text)
        home.finish_study(study, 600.0)
        timings = []
        for trial in home.trials(study):
            if trial["state"] != "pruned":
                continue
            timings.append(_pruned(home, study, trial["number"], trial["run"]))
    measurable = [timing for timing in timings if timing["next_step_seconds"] is not None]
    assert measurable, "no trial was pruned that another one followed"
    return {
        "times": len(measurable),
        **{name: statistics.median(timing[name] for timing in measurable) for name in measurable[0]},
        "worst_asked_seconds": max(timing["asked_seconds"] for timing in measurable),
        "worst_next_step_seconds": max(timing["next_step_seconds"] for timing in measurable),
    }


def _pruned(home: Lab, study: str, number: int, run_id: str) -> dict[str, Any]:
    """Seconds from the line that decided it to the decision; from there to the stop that was asked for, carried out,
    to the end of the run, and to the first step of the next trial (None where none followed)."""
    ((step, decided_at),) = home.rows(
        "SELECT step, at FROM trial_rungs WHERE study_id = ? AND number = ? ORDER BY rung DESC LIMIT 1", study, number
    )
    ((line_at,),) = home.rows(
        "SELECT max(at) FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ? AND step = ? "
        "AND json_extract(data, '$.\"val/accuracy\"') IS NOT NULL",
        run_id, step,
    )  # fmt: skip
    ((asked_at, answered_at),) = home.rows(
        "SELECT created_at, answered_at FROM commands WHERE verb = 'stop' AND run_id = ?", run_id
    )
    ((ended_at,),) = home.rows("SELECT ended_at FROM runs WHERE run_id = ?", run_id)
    ((next_at,),) = home.rows(
        "SELECT min(m.at) FROM metrics AS m JOIN metric_sources AS s USING (source_id) JOIN trials AS t USING (run_id) "
        "WHERE t.study_id = ? AND t.number = ? AND json_extract(m.data, '$.loss') IS NOT NULL",
        study, number + 1,
    )  # fmt: skip
    ((started_at,),) = home.rows(
        "SELECT min(a.started_at) FROM attempts AS a JOIN trials AS t USING (run_id) "
        "WHERE t.study_id = ? AND t.number = ?",
        study, number + 1,
    )  # fmt: skip
    return {
        "noticed_seconds": decided_at - line_at,
        "asked_seconds": asked_at - decided_at,
        "carried_out_seconds": answered_at - decided_at,
        "ended_seconds": ended_at - decided_at,
        "next_started_seconds": None if started_at is None else started_at - decided_at,
        "next_step_seconds": None if next_at is None else next_at - decided_at,
    }


# --- what Hyperband saves


def hyperband(size: Size) -> dict[str, Any]:
    """The planted space with and without Hyperband: many studies in turns of one step, and one with real processes on
    eight simulated GPUs."""
    pairs = [
        (simulated.planted_study("hyperband", seed), simulated.planted_study("none", seed))
        for seed in range(size.studies)
    ]
    medians = [simulated.planted_study("median", seed) for seed in range(size.studies)]
    live = _live_hyperband(max(0.3, size.trial_seconds / 120))
    return {
        "studies": size.studies,
        "saved_percent": 100 * (1 - statistics.mean(pruned.used_share for pruned, _ in pairs)),
        "worse_by": statistics.median(pruned.best - full.best for pruned, full in pairs),
        "worst_by": max(pruned.best - full.best for pruned, full in pairs),
        "best": statistics.median(pruned.best for pruned, _ in pairs),
        "best_without": statistics.median(full.best for _, full in pairs),
        "median_saved_percent": 100 * (1 - statistics.mean(median.used_share for median in medians)),
        "median_best": statistics.median(median.best for median in medians),
        "live": live,
    }


def _live_hyperband(step_seconds: float) -> dict[str, Any]:
    text = (
        f"profile: ./planted.yaml\n{PLANTED_SPACE}\nobjective: {{metric: loss}}\nsampler: tpe\nbudget: {{trials: 32}}\n"
        f"params: {{seconds: {step_seconds}}}\npruner: {{kind: %s, length: {planted.STEPS}, rungs: {planted.STEPS}}}\n"
    )
    figures: dict[str, Any] = {"step_seconds": step_seconds}
    with lab(8) as home:
        for pruner in ("hyperband", "none"):
            study = home.begin(text % pruner, pruner)
            home.finish_study(study, 32 * planted.STEPS * step_seconds + 300)
            steps = home.rows(
                "SELECT count(*) FROM metrics JOIN metric_sources USING (source_id) JOIN runs USING (run_id) "
                "WHERE study_id = ?",
                study,
            )[0][0]
            trials = home.trials(study)
            best = min(trial["value"] for trial in trials if trial["state"] == "complete")
            figures[pruner] = {"steps": steps, "best": best}
    figures["saved_percent"] = 100 * (1 - figures["hyperband"]["steps"] / (32 * planted.STEPS))
    figures["worse_by"] = figures["hyperband"]["best"] - figures["none"]["best"]
    return figures


# --- populations


def population(size: Size) -> dict[str, Any]:
    """A population on a moving optimum beside the best of the same first points left alone, for several seeds; and one
    with real processes, whose learning rates and lineage are compared with what was decided."""
    results = [simulated.moving_population(seed) for seed in range(size.seeds)]
    return {
        "seeds": size.seeds,
        "won": sum(result.population < result.fixed for result in results),
        "won_percent": 100 * sum(result.population < result.fixed for result in results) / size.seeds,
        "loss": statistics.median(result.population for result in results),
        "fixed_loss": statistics.median(result.fixed for result in results),
        "live": _live_population(size.live_steps, is_paced=size.live_paced),
    }


def _live_population(steps: int, members: int = 8, *, is_paced: bool) -> dict[str, Any]:
    every = steps // 8
    low, high = moving.LR
    text = (
        f"profile: ./moving.yaml\nspace: {{lr: {{type: float, min: {low}, max: {high}, log: true}}}}\n"
        f"objective: {{metric: loss, over: last}}\nparams: {{steps: {steps}}}\n"
        f"pbt: {{members: {members}, every: {every}}}\n"
    )
    with lab(members) as home:
        if is_paced:
            home.allow_steps(every)
        study = home.begin(text)
        if is_paced:
            _pace(home, study, every, members)
        home.finish_study(study, steps * 0.05 * 10 + 300)
        trials = {trial["number"]: trial for trial in home.trials(study)}
        runs = {trial["run"]: _segments(home, trial["run"]) for trial in trials.values()}
        exact = sum(segment.lr == segment.wanted_lr for segments in runs.values() for segment in segments)
        exploits = sum(len(segments) - 1 for segments in runs.values())
        replayed = {
            trial["run"]: _replayed(runs, trials, trial["run"], steps, steps) == runs[trial["run"]][-1].last_loss
            for trial in trials.values()
        }
        best = min(segments[-1].last_loss for segments in runs.values())
    return {
        "exploits": exploits,
        "segments": sum(map(len, runs.values())),
        "segments_with_exact_lr": exact,
        "lr_exact_percent": 100 * exact / sum(map(len, runs.values())),
        "members": len(replayed),
        "lineages_replayed": sum(replayed.values()),
        "replayed_percent": 100 * sum(replayed.values()) / len(replayed),
        "best_loss": best,
    }


def _pace(home: Lab, study: str, every: int, members: int) -> None:
    """Let the members go on past a milestone once they were compared at the one before, three times; then to the
    end."""
    givers = "SELECT count(DISTINCT run_id) FROM checkpoints"
    wait_until(lambda: home.rows(givers) == [(members,)], 300.0, "a checkpoint of each member")
    for milestone in (1, 2, 3):
        home.allow_steps(milestone * every + every // 2)
        wait_until(partial(_has_decided, home, study, milestone), 300.0, "a decision")
    home.allow_steps(None)


def _has_decided(home: Lab, study: str, milestone: int) -> bool:
    decided = "SELECT milestone >= ? FROM studies WHERE study_id = ?"
    return home.rows(decided, milestone, study) == [(1,)]


@dataclass(frozen=True, slots=True)
class _Segment:
    """One attempt of a member: the learning rate that was decided and the one that its lines report, where it came
    from, its first step, and the losses after its steps."""

    run_id: str
    started_at: float
    wanted_lr: float
    lr: float
    resumed_from: str | None
    first_step: int
    losses: Mapping[int, float]

    @property
    def last_loss(self) -> float:
        return self.losses[max(self.losses)]


def _segments(home: Lab, run_id: str) -> list[_Segment]:
    segments = []
    for number, params, started_at, resumed_from in home.rows(
        "SELECT number, params, started_at, resumed_from FROM attempts WHERE run_id = ? ORDER BY number", run_id
    ):
        lines = [
            (step, json.loads(data))
            for step, data in home.rows(
                "SELECT m.step, m.data FROM metrics AS m JOIN metric_sources USING (source_id) "
                "WHERE run_id = ? AND m.attempt = ? ORDER BY m.generation, m.byte_offset",
                run_id, number,
            )
        ]  # fmt: skip
        if lines:
            rates = {data["lr"] for _, data in lines}
            assert len(rates) == 1, f"{run_id} attempt {number} reports the rates {rates}"
            losses = {step: data["loss"] for step, data in lines}
            lr = json.loads(params)["lr"]
            segments.append(
                _Segment(
                    run_id,
                    started_at,
                    lr,
                    lr=lines[0][1]["lr"],
                    resumed_from=resumed_from,
                    first_step=lines[0][0],
                    losses=losses,
                )
            )
    return segments


def _replayed(
    runs: Mapping[str, list[_Segment]], trials: Mapping[int, Any], run_id: str, end: int, steps: int
) -> float:
    """The final loss of a member, trained again from nothing by the learning rates of its lineage alone."""
    segment = runs[run_id][-1]
    phases: list[tuple[int, int, float]] = []
    while True:
        phases.append((segment.first_step, end, segment.lr))
        if segment.resumed_from is None:
            break
        end = segment.first_step
        segment = _parent(runs, trials, segment)
    loss = moving.FIRST
    for first, last, lr in reversed(phases):
        loss = moving.trained(lr, first, last, steps, loss)
    return loss


def _parent(runs: Mapping[str, list[_Segment]], trials: Mapping[int, Any], segment: _Segment) -> _Segment:
    """The segment whose checkpoint a segment began from: a donor's, whose number is in the name of the link's folder,
    or an earlier one of the same member."""
    folder = Path(segment.resumed_from or "").parent.name
    parts = folder.split("-")
    run_id = trials[int(parts[2])]["run"] if parts[1:2] == ["from"] else segment.run_id
    before = [
        candidate
        for candidate in runs[run_id]
        if candidate.started_at < segment.started_at
        and segment.first_step - 1 in candidate.losses
        and candidate is not segment
    ]
    # Where the donor itself went on from elsewhere meanwhile, the checkpoint tells which of its segments wrote it.
    if len(before) > 1:
        saved_loss = _saved_loss(Path(segment.resumed_from or ""))
        before = [candidate for candidate in before if candidate.losses[segment.first_step - 1] == saved_loss] or before
    return before[-1]


def _saved_loss(path: Path) -> float | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return float(json.loads(archive.read("state"))[1])
    except (OSError, KeyError):
        return None


# --- kills


def kills(size: Size) -> dict[str, Any]:
    """The kill drill of `make chaos`: raises AssertionError where something was lost or doubled."""
    began = time.monotonic()
    with lab(None) as home:
        drill = StudyChaos(home, size.drill_seed, trials=size.drill_trials, steps=size.drill_steps)
        drill.rage(size.kills)
        ends = drill.check()
    return {
        "kills": drill.killed.total(),
        "killed": dict(drill.killed),
        "studies": len(drill.studies),
        "trials": ends.total(),
        "verdicts": dict(ends),
        "checked": dict(drill.checked),
        "lost": 0,
        "seconds": time.monotonic() - began,
    }


PARTS: Mapping[str, Callable[[Size], dict[str, Any]]] = {
    "overhead": overhead,
    "sampling": sampling,
    "pruning": pruning,
    "hyperband": hyperband,
    "population": population,
    "kills": kills,
}


def measure(names: list[str], size: Size) -> dict[str, dict[str, Any]]:
    """The parts that are asked for, all for none; one that fails says why under ``failed``."""
    results: dict[str, dict[str, Any]] = {}
    for name in names or list(PARTS):
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        load = machine_load()
        began = time.monotonic()
        try:
            result = PARTS[name](size)
        except (AssertionError, OSError, sqlite3.Error, subprocess.SubprocessError) as error:
            result = {"failed": str(error) or type(error).__name__}
        results[name] = {**result, "load_before": load, "took_seconds": time.monotonic() - began}
    return results
