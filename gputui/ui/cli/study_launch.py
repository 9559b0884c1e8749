"""Start a study from a file or as a grid, and wait for its end."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from gputui.core import units
from gputui.core.redaction import redact_argv
from gputui.core.text import clean
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.params import split_assignments
from gputui.profiles.profile_file import Profile
from gputui.profiles.resolve import ResolveError
from gputui.runs.identity import actor
from gputui.runs.launch_shell import capture
from gputui.runs.spec import RunSpec
from gputui.runs.submission import ticket_for
from gputui.store.commands import submit
from gputui.store.database import data_version
from gputui.store.metrics.roles import LOSS
from gputui.store.studies import StudyState, TrialRecord, TrialState, get_study, read_trials
from gputui.studies import launch as plans
from gputui.studies.spec import StudySpec, missing_library
from gputui.studies.study_file import (
    StudyFile,
    find_study_file,
    grid_source,
    load_study,
    read_study,
)
from gputui.ui.cli import launch_spec
from gputui.ui.cli.context import Exit, Session, fail, print_json, print_result, refuse, say
from gputui.ui.cli.gpus import wait_for_gpus

POLL_SECONDS = 0.2  # a person sees no delay
AGENT_SECONDS = 5.0  # how often an agent is looked for, which takes a process


def load_file(session: Session, name: str, target: str | None = None) -> StudyFile:
    """The study of a path or name, on a target; ends the command with one line per problem."""
    path = find_study_file(name, session.workspace, Path.cwd())
    return load_study(path, session.workspace, Path.cwd(), target)


def load_grid(
    session: Session, argv: Sequence[str], target: str | None, command: click.Command | None = None, **options: Any
) -> StudyFile:
    """A grid over values of the parameters of a profile or command as a study.

    Ends the command with one line per problem.

    Args:
        argv: a profile's name, or a command with its arguments.
        target: the name of the target where the trials run; None for here.
        command: gputui's own command that has the ``options``; None if ``argv`` is a profile.
        options: ``grid``, ``changes``, ``metric``, ``maximize``, ``over``, ``parallel`` and ``name`` of that command.
    """
    if command is None:
        profile = launch_spec.load_profile(session, argv[0])
    else:
        profile = launch_spec.typed_profile(argv, command)
    metrics = profile.form.metrics
    maximizes = options["maximize"]
    metric = options["metric"] or metrics.loss or LOSS
    if options["metric"] is None and metrics.best is not None:
        metric = metrics.best.name
        maximizes = maximizes or metrics.best.mode == "max"
    objective = {"metric": metric, "direction": "minimize", "over": options["over"] or "best"}
    if maximizes:
        objective["direction"] = "maximize"
    settings = {"name": options["name"], "objective": objective, "parallel": options["parallel"], "target": target}
    try:
        values = {key: text.split(",") for key, text in split_assignments(options["grid"]).items()}
        fixed = split_assignments(options["changes"])
        source = grid_source(profile, values, fixed, settings)
        study = read_study(source, Path("--grid"), session.workspace, Path.cwd())
        harmless = replace(profile, typed=redact_argv(profile.typed))
        return replace(study, source=grid_source(harmless, values, fixed, settings))
    except ProfileError as error:
        # The file is not the person's own: its lines say nothing.
        problems = [replace(problem, file=_parameter(problem.key), line=None, key="") for problem in error.problems]
        refuse([str(problem).removeprefix(": ") for problem in problems], Exit.USAGE)


def _parameter(key: str) -> str:
    """The parameter of a key of a study's file, else the key."""
    return key.removeprefix("space.").removeprefix("params.")


def note_ignored_gpus(study: StudyFile) -> None:
    """Say on standard error that the shell's choice of GPUs does not reach the trials."""
    remark = plans.ignored_shell_gpus(study.spec, study.profile, os.environ)
    if remark is not None:
        click.echo(f"gputui: {clean(remark)}", err=True)


def resolve_study(session: Session, spec: StudySpec, profile: Profile) -> tuple[StudySpec, RunSpec]:
    """The study with the GPUs of a trial, and the specification of its runs. Raises ResolveError."""
    with closing(session.reader_or_empty()) as connection:
        seconds = plans.usual_seconds(connection, spec)
    return plans.resolve_study(spec, profile, launch_spec.gpu_situation(session), seconds)


def planned_study(session: Session, study: StudyFile) -> StudySpec:
    """The study with the GPUs that a trial would get here; as its file says if this machine cannot run it."""
    try:
        spec, _ = resolve_study(session, study.spec, study.profile)
    except ResolveError:
        return study.spec
    return spec


def launch(session: Session, spec: StudySpec, profile: Profile, source: str, *, wait: bool, as_json: bool) -> int:
    """Check the first point as a run, hand the study to the agent, and wait for its end if
    requested. Returns the exit code."""
    if (problem := missing_library(spec)) is not None:
        fail(problem, Exit.REFUSED)
    session.need_agent()
    if spec.target is None and (spec.gpus_per_trial or not profile.form.gpus.is_none):
        wait_for_gpus(session)
    spec, base = resolve_study(session, spec, profile)
    situation = launch_spec.gpu_situation(session)
    launch_spec.refuse_failed(plans.check_first_trial(session.workspace, base, spec, situation))
    with closing(session.commander()) as connection, session.writing():
        with ticket_for(session.workspace, replace(base, shell=capture())) as ticket:
            arguments = {"spec": spec.to_json(), "source": source, **ticket}
            command_id = submit(connection, "study", run_id=None, args=arguments, actor=actor(), now=time.time())
        study_id = str(session.wait(connection, command_id)["id"])
    if not wait:
        text = f"{study_id} started; gputui study show {study_id} shows it, gputui study stop {study_id} ends it"
        print_result({"id": study_id, "state": StudyState.RUNNING}, text, as_json)
        return Exit.OK
    return wait_until_over(session, study_id, as_json=as_json)


def print_plan(session: Session, spec: StudySpec, *, as_json: bool) -> None:
    """Print what a study would run in this home, and its expected cost."""
    with closing(session.reader_or_empty()) as connection:
        plan = plans.study_plan(connection, spec)
    if as_json:
        print_json(plan)
        return
    say(plans.plan_head(plan))
    for number, point in enumerate(plan["first_points"]):
        say(f"  {number}  {plans.point_words(point)}")
    say(plans.plan_cost(plan))


def wait_until_over(session: Session, study_id: str, *, as_json: bool) -> int:
    """Show each verdict until the study ends or pauses. Returns the exit code."""
    with closing(session.reader()) as connection:
        try:
            _follow(session, connection, study_id, is_shown=not as_json)
        except KeyboardInterrupt:
            say(f"{study_id} continues; gputui study stop {study_id} ends it")
            return Exit.INTERRUPTED
        return _print_end(connection, study_id, as_json=as_json)


def _follow(session: Session, connection: sqlite3.Connection, study_id: str, *, is_shown: bool) -> None:
    printed: set[int] = set()
    version = -1
    agent_at = time.monotonic()
    while True:
        if (changed := data_version(connection)) != version:
            version = changed
            study = get_study(connection, study_id)
            if study is None:
                fail(f"{study_id} was removed", Exit.REFUSED)
            for trial in read_trials(connection, study_id):
                if is_shown and trial.state.is_over and trial.number not in printed:
                    printed.add(trial.number)
                    say(trial_line(trial))
            if study.state.is_over or study.state is StudyState.PAUSED:
                return
        if time.monotonic() - agent_at > AGENT_SECONDS:
            session.need_agent()
            agent_at = time.monotonic()
        time.sleep(POLL_SECONDS)


def _print_end(connection: sqlite3.Connection, study_id: str, *, as_json: bool) -> int:
    from gputui.studies.analysis import rank_trials
    from gputui.studies.json_shapes import study_shape
    from gputui.studies.spec import study_spec

    study = get_study(connection, study_id)
    assert study is not None
    trials = read_trials(connection, study_id)
    if as_json:
        print_json(study_shape(connection, study, time.time()))
    else:
        say(f"{study_id} {study.state}: {study.reason}")
        objectives = study_spec(study).objectives
        for trial in rank_trials(trials, objectives, most=1):
            title = "best"
            if len(objectives) > 1:
                title = "Pareto front"
            say(f"{title}: {trial_line(trial)}")
    if study.state is StudyState.FINISHED and any(trial.state is TrialState.COMPLETE for trial in trials):
        return Exit.OK
    return Exit.RUN_FAILED


def trial_line(trial: TrialRecord) -> str:
    """``trial 3: 0.98 · lr=0.01 batch_size=16 · done``."""
    values = ", ".join(map(units.metric_value, trial.values or (trial.shown_value,)))
    end = trial.state.word
    if trial.reason is not None and trial.reason.startswith(trial.state):
        end = trial.reason
    elif trial.reason is not None:
        end = f"{end}: {trial.reason}"
    return f"trial {trial.number}: {values} · {plans.point_words(trial.params)} · {end}"
