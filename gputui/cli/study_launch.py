"""From a study's file, or a sweep, to a study that the agent has begun; and waiting for its end."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gputui.charts import units
from gputui.cli import launch_spec
from gputui.cli.context import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_RUN_FAILED,
    EXIT_USAGE,
    Session,
    actor,
    fail,
    print_json,
    say,
)
from gputui.cli.gpus import wait_for_gpus
from gputui.profiles.loading import Profile
from gputui.profiles.preflight import check as preflight
from gputui.profiles.resolve import ResolveError, resolve
from gputui.runs.launch_shell import capture
from gputui.runs.spec import RunSpec, Scalar
from gputui.runs.submission import submit_ticket
from gputui.store.database import data_version
from gputui.store.memory_peaks import past_peaks
from gputui.store.studies import (
    SECONDS_PER_HOUR,
    StudyState,
    TrialRecord,
    TrialState,
    expected_seconds,
    get_study,
    read_trials,
)
from gputui.studies import decide
from gputui.studies.loading import StudyFile, StudyFileNotFoundError, find_study_file, load_study
from gputui.studies.pbt import first_point
from gputui.studies.sampling import OptunaMirror, missing_library
from gputui.studies.sharing import trials_on_gpu
from gputui.studies.spec import StudySpec
from gputui.yaml_forms.problems import ProfileError

POLL_SECONDS = 0.2
AGENT_SECONDS = 5.0
SHOWN_POINTS = 10


def load_file(session: Session, wanted: str) -> StudyFile:
    """The study that a path or a name means; ends the command with one line per problem."""
    try:
        return load_study(find_study_file(wanted, session.workspace, Path.cwd()), session.workspace, Path.cwd())
    except (StudyFileNotFoundError, ProfileError) as error:
        launch_spec.refuse(str(error).splitlines(), EXIT_USAGE)


def resolve_study(session: Session, spec: StudySpec, profile: Profile) -> tuple[StudySpec, RunSpec]:
    """The study with the GPUs of a trial, and the specification of its runs; ends the command where this machine cannot
    serve it."""
    situation = launch_spec.gpu_situation(session)
    whole = None if situation is None else sum(not gpu.mig_mode for gpu in situation.facts)
    if whole and spec.gpus_per_trial > whole:
        asked = f"gpus_per_trial: {spec.gpus_per_trial} asked for, this machine has {whole}; give {whole} at most"
        launch_spec.refuse([asked], EXIT_REFUSED)
    of_profile = profile.form.gpus.count or len(profile.form.gpus.devices)
    try:
        base = resolve(
            profile,
            overrides=dict(spec.params),
            gpus_override=None if spec.gpus_per_trial == of_profile else str(spec.gpus_per_trial),
            inventory=None if situation is None else situation.facts,
        )
    except ResolveError as error:
        launch_spec.refuse(list(error.problems), EXIT_REFUSED if error.is_refusal else EXIT_USAGE)
    spec = replace(spec, gpus_per_trial=len(base.gpus.uuids) or base.gpus.count)
    if problems := impossible_budget(spec, _usual_seconds(session, spec)):
        launch_spec.refuse(problems, EXIT_REFUSED)
    return spec, base


def impossible_budget(spec: StudySpec, seconds: float | None) -> list[str]:
    """What is wrong with a budget that not even one trial fits into; ``seconds`` is what a run usually takes, None
    where that is not known."""
    if seconds is None:
        return []
    budget, hours = spec.budget, seconds * spec.gpus_per_trial / SECONDS_PER_HOUR
    found = []
    if budget.wall_seconds is not None and budget.wall_seconds < seconds:
        took, given = units.duration(seconds), units.duration(budget.wall_seconds)
        found.append(f"budget.wall: {given} is less than one run takes, {took} by earlier ones; give more")
    if budget.gpu_hours is not None and budget.gpu_hours < hours:
        found.append(
            f"budget.gpu_hours: {budget.gpu_hours:g} is less than one run takes, {hours:.2g} by earlier ones; give more"
        )
    return found


def _usual_seconds(session: Session, spec: StudySpec) -> float | None:
    """How long a run of the study's profile takes by earlier ones, None where none is known."""
    connection = session.reader_or_none()
    if connection is None:
        return None
    with closing(connection):
        return expected_seconds(connection, spec.profile, spec.params)


def launch(session: Session, spec: StudySpec, profile: Profile, source: str, *, wait: bool, as_json: bool) -> int:
    """Check the first point as a run, hand the study to the agent, and wait for its end where asked: the exit code."""
    if (missing := missing_library(spec)) is not None:
        fail(missing, EXIT_REFUSED)
    session.need_agent()
    if spec.gpus_per_trial or not profile.form.gpus.is_none:
        with closing(session.reader()) as connection:
            wait_for_gpus(connection)
    spec, base = resolve_study(session, spec, profile)
    point = first_points(spec, 1)[0]
    trial = decide.trial_spec(base, spec, spec.name, 0, point)
    results = preflight(
        trial,
        state=session.workspace.state,
        gpus=launch_spec.gpu_situation(session),
        past=launch_spec.earlier_peaks(session, trial),
    )
    failed = [result for result in results if result.status == "fail"]
    if failed:
        launch_spec.refuse([f"{result.name}: {result.detail}; {result.remedy}" for result in failed], EXIT_REFUSED)
    with closing(session.commander()) as connection, session.writing():
        words = {"spec": spec.to_json(), "source": source}
        command_id = submit_ticket(
            session.workspace, connection, "study", replace(base, shell=capture()), words, actor(), now=time.time()
        )
        study_id = str(session.wait(connection, command_id)["id"])
    if not wait:
        if as_json:
            print_json({"id": study_id, "state": StudyState.RUNNING})
        else:
            say(f"{study_id} started; gputui study show {study_id} shows it, gputui study stop {study_id} ends it")
        return EXIT_OK
    return wait_until_over(session, study_id, as_json=as_json)


def first_points(spec: StudySpec, count: int) -> list[dict[str, Scalar]]:
    """The first points of a study that knows nothing yet."""
    if spec.pbt is not None:
        return [first_point(spec.space, spec.seed, number) for number in range(min(count, spec.pbt.members))]
    if spec.sampler.kind == "grid":
        return (spec.grid() or [])[:count]
    count = min(count, spec.budget.trials or count)
    mirror = OptunaMirror(spec, spec.name, {})
    return [mirror.ask()[0] for _ in range(count)]


def plan_json(session: Session, spec: StudySpec) -> dict[str, Any]:
    """What a study would do: its first points, and what it is expected to take by earlier runs of the profile. Unknown
    is null; what pruning saves is not foreseen, nor how much trials that share a GPU slow each other."""
    trials = spec.budget.trials if spec.pbt is None else spec.pbt.members
    if spec.pbt is None and spec.sampler.kind == "grid":
        size = spec.grid_size or 0
        trials = size if trials is None else min(trials, size)
    seconds, room, sharing = _usual_seconds(session, spec), spec.parallel, 1
    if (connection := session.reader_or_none()) is not None:
        with closing(connection):
            (gpus,) = connection.execute("SELECT count(*) FROM gpus WHERE present").fetchone()
            sharing = _trials_on_each_gpu(connection, spec)
        if spec.gpus_per_trial:
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
        "first_points": first_points(spec, SHOWN_POINTS),
        "expected_trial_seconds": seconds,
        "expected_wall_seconds": min(wall, limit) if wall is not None and limit is not None else wall,
        "expected_gpu_hours": None if total is None else total * spec.gpus_per_trial / sharing / 3600,
    }


def _trials_on_each_gpu(connection: sqlite3.Connection, spec: StudySpec) -> int:
    """How many trials would share each GPU of the machine, by the peaks of earlier runs of the profile on one GPU."""
    if spec.trials_per_gpu == 1:
        return 1
    peaks = (past.peak_bytes for past in past_peaks(connection, spec.profile) if past.gpu_count == 1)
    largest = max((peak for peak in peaks if peak is not None), default=None)
    gpus = connection.execute("SELECT facts ->> '$.memory_total_bytes' FROM gpus WHERE present").fetchall()
    return min((trials_on_gpu(spec.trials_per_gpu, total, 0, largest) for (total,) in gpus), default=1)


def wait_until_over(session: Session, study_id: str, *, as_json: bool) -> int:
    """Show each verdict as it comes: the exit code. A study that pauses by itself is not waited for."""
    shown: set[int] = set()
    version, agent_at = -1, time.monotonic()
    with closing(session.reader()) as connection:
        try:
            while True:
                if (changed := data_version(connection)) != version:
                    version = changed
                    study = get_study(connection, study_id)
                    if study is None:
                        fail(f"{study_id} was removed", EXIT_REFUSED)
                    trials = read_trials(connection, study_id)
                    for trial in trials:
                        if trial.state.is_over and trial.number not in shown:
                            shown.add(trial.number)
                            if not as_json:
                                say(trial_line(trial))
                    if study.state.is_over or study.state is StudyState.PAUSED:
                        break
                if time.monotonic() - agent_at > AGENT_SECONDS:
                    session.need_agent()
                    agent_at = time.monotonic()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            say(f"{study_id} continues; gputui study stop {study_id} ends it")
            return EXIT_INTERRUPTED
        return _tell_end(connection, study_id, as_json=as_json)


def _tell_end(connection: sqlite3.Connection, study_id: str, *, as_json: bool) -> int:
    from gputui.cli.study_shapes import study_shape
    from gputui.studies.analysis import best_trials

    study = get_study(connection, study_id)
    assert study is not None
    trials = read_trials(connection, study_id)
    if as_json:
        print_json(study_shape(connection, study, time.time()))
    else:
        say(f"{study_id} {study.state}: {study.reason}")
        for trial in best_trials(study, trials)[:1]:
            say(f"best {trial_line(trial)}")
    is_well = study.state is StudyState.FINISHED and any(one.state is TrialState.COMPLETE for one in trials)
    return EXIT_OK if is_well else EXIT_RUN_FAILED


def trial_line(trial: TrialRecord) -> str:
    """``trial 3: 0.98 · lr=0.01 batch_size=16 · complete``."""
    values = ", ".join(units.metric_value(value) for value in trial.values) or "–"
    is_told = trial.reason is not None and trial.reason.startswith(trial.state)
    how = trial.state if trial.reason is None else trial.reason if is_told else f"{trial.state}: {trial.reason}"
    return f"trial {trial.number}: {values} · {point_words(trial.params)} · {how}"


def point_words(params: Any, names: Sequence[str] | None = None) -> str:
    """``lr=0.01 batch_size=16``."""
    shown = {name: params[name] for name in names} if names is not None else params
    return " ".join(f"{name}={units.metric_value(v) if isinstance(v, float) else v}" for name, v in shown.items())
