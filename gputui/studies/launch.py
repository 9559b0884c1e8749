"""The plan of a study on this machine: its runs, first points, checks and expected cost."""

from __future__ import annotations

import shlex
import sqlite3
import statistics
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from gputui.core import units
from gputui.core.config import Workspace
from gputui.profiles.devices import machine_has
from gputui.profiles.gpu_checks import GpuSituation
from gputui.profiles.preflight import check, check_elsewhere, quick_checks
from gputui.profiles.profile_file import Profile
from gputui.profiles.resolve import GpuChoice, ResolveError, resolve
from gputui.runs.checks import CheckResult
from gputui.runs.spec import SHELL_GPUS, RunSpec, Scalar
from gputui.store.database import StoreError, open_reader
from gputui.store.gpu_use import past_peaks
from gputui.store.rows import json_mapping
from gputui.store.studies import SECONDS_PER_HOUR
from gputui.studies import decide
from gputui.studies.pbt import first_point
from gputui.studies.spec import StudySpec
from gputui.studies.study_file import gpus_of

SHOWN_POINTS = 10  # the plan stays on one screen


def resolve_study(
    spec: StudySpec, profile: Profile, situation: GpuSituation | None, run_seconds: float | None
) -> tuple[StudySpec, RunSpec]:
    """Resolve a study for the machine that runs it.

    Args:
        spec: the study as its file has it.
        profile: the profile of its runs.
        situation: the GPUs of this machine; None if unknown.
        run_seconds: the usual duration of a run; None if unknown.

    Returns:
        The study with the GPUs of a trial, and the specification of its runs.

    Raises:
        ResolveError: if this machine cannot run it.
    """
    if spec.target is not None:
        situation = None
    if situation is None:
        inventory = None
        excluded = set()
    else:
        inventory = situation.facts
        excluded = situation.excluded
    whole = sum(not gpu.mig_mode and gpu.uuid not in excluded for gpu in inventory or ())
    if inventory is not None and whole and spec.gpus_per_trial > whole:
        has = machine_has(inventory, excluded)
        problem = f"gpus_per_trial: {spec.gpus_per_trial} asked for, {has}; give {whole} at most"
        raise ResolveError([problem], is_refusal=True)
    gpus_override = None
    if spec.gpus_per_trial != gpus_of(profile):
        gpus_override = str(spec.gpus_per_trial)
    choice = GpuChoice(gpus_override, inventory, excluded, heeds_shell=False)
    base = resolve(profile, choice, overrides=dict(spec.params), target=spec.target)
    count = len(base.gpus.uuids) or base.gpus.count
    per_gpu = int(1 / base.gpus.share)
    spec = replace(spec, gpus_per_trial=count, trials_per_gpu=max(spec.trials_per_gpu, per_gpu))
    if problems := impossible_budget(spec, run_seconds):
        raise ResolveError(problems, is_refusal=True)
    return spec, base


def ignored_shell_gpus(spec: StudySpec, profile: Profile, environ: Mapping[str, str]) -> str | None:
    """The remark that a study leaves CUDA_VISIBLE_DEVICES of the launching shell
    aside. None without that variable, and where it would choose nothing."""
    has_gpus = spec.gpus_per_trial > 0 or not profile.form.gpus.is_none
    if spec.target is not None or not has_gpus or "GPUTUI_RUN_DIR" in environ or SHELL_GPUS not in environ:
        return None
    shell = f"{SHELL_GPUS}={shlex.quote(environ[SHELL_GPUS])}"
    return f"{shell} of the launching shell is ignored: the file and the profile say which GPUs a trial gets"


def impossible_budget(spec: StudySpec, seconds: float | None) -> list[str]:
    """Problems of a budget that is too small for one trial. ``seconds`` is the usual duration of a
    run, None if unknown."""
    if seconds is None:
        return []
    budget = spec.budget
    hours = seconds * spec.gpus_per_trial / SECONDS_PER_HOUR
    problems = []
    if budget.wall_seconds is not None and budget.wall_seconds < seconds:
        run_time = units.duration(seconds)
        budgeted = units.duration(budget.wall_seconds)
        problems.append(f"budget.wall: {budgeted} is less than one run takes, {run_time} by earlier ones; give more")
    if budget.gpu_hours is not None and budget.gpu_hours < hours:
        problems.append(
            f"budget.gpu_hours: {budget.gpu_hours:g} is less than one run takes, {hours:.2g} by earlier ones; give more"
        )
    return problems


def check_first_trial(
    workspace: Workspace, base: RunSpec, spec: StudySpec, situation: GpuSituation | None, *, with_process: bool = True
) -> list[CheckResult]:
    """The checks of the first trial as a run; those that start a process only ``with_process``."""
    trial = decide.trial_spec(base, spec, spec.name, 0, first_points(spec, 1)[0])
    if trial.target is not None:
        return check_elsewhere(trial, workspace.state)
    try:
        with closing(open_reader(workspace.database)) as connection:
            past = past_peaks(connection, trial.name)
    except StoreError:
        past = []
    checks = check if with_process else quick_checks
    return checks(trial, state=workspace.state, gpus=situation, past=past)


def usual_seconds(connection: sqlite3.Connection, spec: StudySpec) -> float | None:
    """The median duration of the newest successful runs of the study's profile with its fixed values;
    None without any."""
    rows = connection.execute(
        "SELECT params, ended_at - started_at FROM runs WHERE profile = ? AND state = 'succeeded' "
        "AND started_at IS NOT NULL ORDER BY sequence DESC LIMIT 200",
        (spec.profile,),
    )
    durations = [seconds for text, seconds in rows if spec.params.items() <= json_mapping(text).items()]
    if durations:
        median: float | None = statistics.median(durations)
        return median
    return None


def first_points(spec: StudySpec, count: int) -> list[dict[str, Scalar]]:
    """The first points of a study without results."""
    if spec.pbt is not None:
        return [first_point(spec.space, spec.seed, number) for number in range(min(count, spec.pbt.members))]
    if spec.is_grid:
        return spec.grid()[:count]
    from optuna.storages import InMemoryStorage

    from gputui.studies.journal import StudyJournal

    journal = StudyJournal(spec, spec.name, InMemoryStorage())
    for _ in range(min(count, spec.budget.trials or count)):
        journal.sample()
    return [dict(trial.params) for trial in journal.trials()]


def study_plan(connection: sqlite3.Connection, spec: StudySpec) -> dict[str, Any]:
    """The first points of a study, and its expected cost by earlier runs of the profile (null if
    unknown). Pruning and the slowdown of trials that share a GPU are ignored. JSON."""
    trials = spec.wanted_trials
    seconds = usual_seconds(connection, spec)
    room = spec.parallel
    sharing = 1
    if spec.target is None:
        (gpus,) = connection.execute("SELECT count(*) FROM gpus WHERE present").fetchone()
        sharing = _trials_on_each_gpu(connection, spec)
        if spec.gpus_per_trial and gpus:
            slots = gpus // spec.gpus_per_trial * sharing
            room = min(spec.parallel or slots, slots) or None
    if room is None and not spec.gpus_per_trial:
        room = 1
    total = None if seconds is None or trials is None else seconds * trials
    wall = None if total is None or trials is None or room is None else total / min(room, trials)
    limit = spec.budget.wall_seconds
    return {
        "name": spec.name,
        "profile": spec.profile,
        "trials": trials,
        "gpus_per_trial": spec.gpus_per_trial,
        "trials_per_gpu": sharing,
        "parallel": room,
        "target": spec.target_name,
        "first_points": first_points(spec, SHOWN_POINTS),
        "expected_trial_seconds": seconds,
        "expected_wall_seconds": min(wall, limit) if wall is not None and limit is not None else wall,
        "expected_gpu_hours": None if total is None else total * spec.gpus_per_trial / sharing / 3600,
    }


def plan_head(plan: Mapping[str, Any]) -> str:
    """``vit-lr: 24 trials of vit-b16, 2 GPUs each, 4 at a time``."""
    if plan["trials"] is None:
        count = "an open number of trials"
    else:
        count = units.count_of(plan["trials"], "trial")
    gpus = plan["gpus_per_trial"]
    of = ""
    if plan["target"] is not None:
        of = f" of {plan['target']}"
    on = f", {units.count_of(gpus, 'GPU')}{of} each" if gpus else f" on the CPUs{of}"
    if plan["trials_per_gpu"] > 1:
        on = f", {plan['trials_per_gpu']} sharing a GPU"
    return f"{plan['name']}: {count} of {plan['profile']}{on}, {plan['parallel'] or units.UNKNOWN} at a time"


def plan_cost(plan: Mapping[str, Any]) -> str:
    """The expected duration and cost as a sentence."""
    if plan["expected_trial_seconds"] is None:
        return "no run of the profile with these parameters has succeeded yet: how long it takes is not known"
    wall = plan["expected_wall_seconds"]
    hours = plan["expected_gpu_hours"]
    return f"expected without pruning: {units.duration(wall)}, {units.gpu_hours(hours)} GPU-hours"


def point_words(params: Mapping[str, Any]) -> str:
    """``lr=0.01 batch_size=16``."""
    return " ".join(f"{name}={units.parameter(value)}" for name, value in params.items())


def _trials_on_each_gpu(connection: sqlite3.Connection, spec: StudySpec) -> int:
    """The number of trials that would share each GPU, by the peaks of earlier runs of the profile
    on one GPU."""
    if spec.trials_per_gpu == 1:
        return 1
    peaks = (past.peak_bytes for past in past_peaks(connection, spec.profile) if past.gpu_count == 1)
    largest = max((peak for peak in peaks if peak is not None), default=None)
    gpus = connection.execute("SELECT facts ->> '$.memory_total_bytes' FROM gpus WHERE present").fetchall()
    return min((decide.trials_on_gpu(spec.trials_per_gpu, total, 0, largest) for (total,) in gpus), default=1)
