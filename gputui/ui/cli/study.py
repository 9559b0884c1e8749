"""`gputui study`."""

from __future__ import annotations

import shlex
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gputui.core import units
from gputui.core.yaml_forms.problems import ProfileError
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.runs.spec import SpecError
from gputui.runs.submission import read_spec
from gputui.store.studies import (
    OUTSIDE,
    RungValue,
    StudyLookupError,
    StudyRecord,
    TrialRecord,
    TrialState,
    find_study,
    read_rungs,
    read_studies,
    read_trials,
    study_gpu_hours,
    study_wall_seconds,
)
from gputui.studies.analysis import best_trial, best_trials
from gputui.studies.rows import SPEC_FILE
from gputui.studies.spec import StudySpec, missing_library, study_spec
from gputui.ui.cli.context import (
    Exit,
    Session,
    fail,
    json_option,
    print_json,
    print_result,
    print_table,
    say,
    typed_moment,
)
from gputui.ui.cli.study_shapes import report_shape, show_shape, study_shape


@click.group("study")
def command() -> None:
    """Many runs of one profile, to find good parameters.

    Exit codes: 0 success, 1 the study failed, was stopped or paused by itself (--wait), 2 usage or
    invalid file, 3 refused, 4 agent unreachable, 130 interrupted.
    """


@command.command("run")
@click.argument("file", metavar="FILE|PROFILE")
@click.option("--grid", multiple=True, metavar="KEY=A,B,C", help="Of a profile: run each combination of these values.")
@click.option("--metric", help="With --grid: what is compared.  [default: loss]")
@click.option("--maximize", is_flag=True, help="With --grid: larger is better.")
@click.option("--over", type=click.Choice(("best", "last")), help="With --grid: which value counts.  [default: best]")
@click.option("--parallel", type=click.IntRange(1, 256), help="With --grid: trials at a time (else as many as fit).")
@click.option("--name", help="With --grid: what the study is called (else the profile's name and -grid).")
@click.option("--on", "target", metavar="TARGET", help="Where its trials run (gputui target list); else here.")
@click.option("--wait", is_flag=True, help="Wait until it ends.")
@click.option("--dry-run", is_flag=True, help="Only show its first points and what they are expected to take.")
@json_option
@click.pass_obj
def run(
    session: Session, /, file: str, target: str | None, wait: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Begin a study from a file, or try a grid of a profile.

    FILE is a path, or a name in ./studies, the home's studies or those that ship with gputui. With
    --grid: run each combination of some values of a PROFILE's parameters; the file of such a study
    is kept (study show --source).
    """
    from gputui.ui.cli.study_launch import launch, load_file, load_grid, plan_json

    if options["grid"]:
        found = load_grid(session, file, target, **options)
    elif given := next((name for name, value in options.items() if value), None):
        fail(f"--{given} goes with --grid; a study's file has it as a key", Exit.USAGE)
    else:
        found = load_file(session, file, target)
    if dry_run:
        plan = plan_json(session, found.spec)
        print_json(plan) if as_json else print_plan(plan)
        return
    raise SystemExit(launch(session, found.spec, found.profile, found.source, wait=wait, as_json=as_json))


@command.command("check")
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Show the first ten trials, and the time expected from earlier runs.")
@json_option
@click.pass_obj
def check(session: Session, file: str, dry_run: bool, as_json: bool) -> None:
    """Check a study's file and its profile."""
    from gputui.ui.cli.study_launch import load_file, plan_json, resolve_study

    found = load_file(session, file)
    spec, _ = resolve_study(session, found.spec, found.profile)
    if (missing := missing_library(spec)) is not None:
        fail(missing, Exit.REFUSED)
    if dry_run:
        plan = plan_json(session, spec)
        print_json(plan) if as_json else print_plan(plan)
    else:
        text = f"{spec.name} is valid: {spec.method} over {', '.join(spec.tuned)} of {spec.profile}"
        print_result({"name": spec.name, "profile": spec.profile, "valid": True}, text, as_json)


def print_plan(plan: dict[str, Any]) -> None:
    """Print the plan of a study for a person."""
    from gputui.studies.launch import plan_cost, plan_head, point_words

    say(plan_head(plan))
    for number, point in enumerate(plan["first_points"]):
        say(f"  {number}  {point_words(point)}")
    say(plan_cost(plan))


def _remark(trial: TrialRecord) -> str:
    """What a person should know about a trial beside its state and values."""
    origins = {
        "enqueued": "by hand",
        "warm": "an earlier run",
        "rerun": f"trial {trial.parent} again, to the end",
        "outside": "run by another process",
    }
    parts = [origins[trial.origin]] if trial.origin in origins else []
    if trial.generation is not None:
        parent = "itself" if trial.parent is None else f"trial {trial.parent}"
        parts.append(f"from {parent} after milestone {trial.generation}")
    if trial.wish == "keep" and not trial.state.is_over:
        parts.append("kept")
    if trial.reason:
        parts.append(trial.reason)
    return "; ".join(parts)


@command.command("list")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@json_option
@click.pass_obj
def list_command(session: Session, at: str | None, as_json: bool) -> None:
    """The studies, newest first."""

    moment = None if at is None else typed_moment(at)
    connection = session.reader_or_none()
    found = [] if connection is None else read_studies(connection, moment)
    now = time.time() if moment is None else moment
    if as_json:
        print_json([study_shape(connection, one, now, moment) for one in found if connection is not None])
        return
    session.note_missing_agent(is_active=any(study.state.needs_agent for study in found))
    if connection is None or not found:
        say("no study yet; gputui study run FILE begins one, gputui study run PROFILE --grid lr=0.1,0.05 a grid")
        return
    rows = []
    for study in found:
        trials = read_trials(connection, study.study_id, moment)
        over = sum(trial.state.is_over for trial in trials)
        pruned = sum(trial.state is TrialState.PRUNED for trial in trials)
        spec = study_spec(study)
        best = best_trials(trials, spec.objectives)
        value = units.metric_value(best[0].value) if best else "–"
        if len(spec.objectives) > 1:
            value = f"Pareto front: {units.count_of(len(best), 'trial')}"
        wanted = spec.wanted_trials
        # Points that a person added, reruns and earlier runs count beyond the budget.
        progress = f"{over}/{max(wanted, len(trials))}" if wanted is not None else str(over)
        took = units.duration(study_wall_seconds(connection, study.study_id, now))
        rows.append((study.study_id, study.state, progress, str(pruned), value, took, study.reason or ""))
    print_table(("STUDY", "STATE", "TRIALS", "PRUNED", "BEST", "TIME", ""), rows)


@command.command("show")
@click.argument("study", required=False)
@click.option("--source", is_flag=True, help="Only the study's file.")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@json_option
@click.pass_obj
def show(session: Session, study: str | None, source: bool, at: str | None, as_json: bool) -> None:
    """One study with its trials, the newest where none is named."""
    from gputui.studies.launch import point_words

    moment = None if at is None else typed_moment(at)
    with closing(session.reader()) as connection:
        found = _find(connection, study, moment)
        if source:
            click.echo(found.source, nl=False)
            return
        shape = show_shape(connection, found, time.time(), moment, session.workspace)
        if as_json:
            print_json(shape)
            return
        say(f"{found.study_id} {found.state}" + (f": {found.reason}" if found.reason else ""))
        goal = ", ".join(f"{one['direction']} {one['metric']}" for one in shape["objectives"])
        spec = study_spec(found)
        pruner = "" if spec.pbt is not None else f" · pruner {spec.pruner.kind}"
        on = "" if shape["target"] is None else f" · on {shape['target']}"
        say(f"{goal} · {spec.method}{pruner}{on} · {units.gpu_hours(shape['gpu_hours'])} GPU-hours")
        say(f"optuna-dashboard {shape['storage']}")
        best = {one["number"] for one in shape["best"]}
        rows = [
            (
                ("★ " if trial.number in best else "  ") + str(trial.number),
                trial.run_id or "–",
                trial.state,
                "–" if trial.rung is None else str(trial.rung),
                ", ".join(units.metric_value(value) for value in trial.values) or "–",
                point_words(trial.params),
                _remark(trial),
            )
            for trial in read_trials(connection, found.study_id, moment)
        ]
        print_table(("  TRIAL", "RUN", "STATE", "RUNG", "VALUE", "POINT", ""), rows)


@command.command("pause")
@click.argument("study")
@json_option
@click.pass_obj
def pause(session: Session, study: str, as_json: bool) -> None:
    """Begin no more trials; those that run go on."""
    _act(session, "study_pause", study, as_json)


@command.command("resume")
@click.argument("study")
@json_option
@click.pass_obj
def resume(session: Session, study: str, as_json: bool) -> None:
    """Go on with a study that is paused or was stopped."""
    _act(session, "study_resume", study, as_json)


@command.command("stop")
@click.argument("study")
@json_option
@click.pass_obj
def stop(session: Session, study: str, as_json: bool) -> None:
    """Stop all of its trials and end it."""
    _act(session, "study_stop", study, as_json)


@command.command("extend")
@click.argument("study")
@click.option("--trials", type=click.IntRange(1), help="So many trials more.")
@click.option("--gpu-hours", type=click.FloatRange(0, min_open=True), help="So many GPU-hours more.")
@click.option("--wall", metavar="TIME", help="So much time more, such as 2h.")
@json_option
@click.pass_obj
def extend(
    session: Session, study: str, trials: int | None, gpu_hours: float | None, wall: str | None, as_json: bool
) -> None:
    """Add to the budget while it goes on; a study that is over goes on."""

    seconds = None if wall is None else parse_duration(wall)
    if wall is not None and not seconds:
        fail(f"--wall: expected a time such as 30m, 10h or 2d, found {wall!r}", Exit.USAGE)
    if trials is None and gpu_hours is None and seconds is None:
        fail("give --trials, --gpu-hours or --wall", Exit.USAGE)
    _act(session, "study_extend", study, as_json, trials=trials, gpu_hours=gpu_hours, wall_seconds=seconds)


@command.command("enqueue")
@click.argument("study")
@click.option("--set", "values", multiple=True, required=True, metavar="KEY=VALUE", help="A tuned parameter's value.")
@json_option
@click.pass_obj
def enqueue(session: Session, study: str, values: tuple[str, ...], as_json: bool) -> None:
    """Add a point by hand; it is the next trial. What is not given is as in the best trial."""
    from gputui.core.yaml_forms.document import plain_value
    from gputui.profiles.params import ParameterError, split_assignments
    from gputui.ui.cli.launch_spec import refuse

    try:
        given = {name: plain_value(text) for name, text in split_assignments(values).items()}
    except ParameterError as error:
        refuse(list(error.problems), Exit.USAGE)
    _act(session, "study_enqueue", study, as_json, set=given)


@command.command("prune")
@click.argument("study")
@click.argument("trial", type=click.IntRange(0))
@json_option
@click.pass_obj
def prune(session: Session, study: str, trial: int, as_json: bool) -> None:
    """Cut a running trial short now, as the pruner does."""
    _act(session, "study_prune", study, as_json, trial=trial)


@command.command("keep")
@click.argument("study")
@click.argument("trial", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Leave it to the pruner again.")
@json_option
@click.pass_obj
def keep(session: Session, study: str, trial: int, undo: bool, as_json: bool) -> None:
    """Let a trial run to its end: the pruner does not cut it short."""
    _act(session, "study_keep", study, as_json, trial=trial, keep=not undo)


@command.command("export")
@click.argument("study")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lineage", is_flag=True, help="The course of a population's best member as a profile with phases.")
@click.option("--trial", type=click.IntRange(0), help="With --lineage: of this member instead.")
@json_option
@click.pass_obj
def export(session: Session, study: str, file: Path, lineage: bool, trial: int | None, as_json: bool) -> None:
    """Copy a study to an Optuna storage in SQLite."""
    if lineage:
        _export_lineage(session, study, file, trial, as_json=as_json)
        return
    if trial is not None:
        fail("--trial goes with --lineage", Exit.USAGE)
    from gputui.studies.journal import StudyExportError, export_study

    with closing(session.reader()) as connection:
        found = _find(connection, study)
        try:
            count = export_study(connection, session.workspace.studies / found.study_id, found, file)
        except StudyExportError as error:
            fail(str(error), Exit.REFUSED)
    text = f"{units.count_of(count, 'trial')} of {found.study_id} written; optuna-dashboard sqlite:///{file}"
    print_result({"id": found.study_id, "file": str(file), "trials": count}, text, as_json)


def _export_lineage(session: Session, study: str, file: Path, number: int | None, *, as_json: bool) -> None:
    from gputui.studies.lineage import LineageError, ProfileChangedError, lineage, phased_profile

    with closing(session.reader()) as connection:
        found = _find(connection, study)
        spec, trials = study_spec(found), read_trials(connection, found.study_id)
        if spec.pbt is None:
            fail(f"{found.study_id} trains no population; gputui study report names the command", Exit.REFUSED)
        members = [trial for trial in trials if trial.origin != OUTSIDE]
        if number is None and (best := best_trial(members, spec.objectives)) is not None:
            number = best.number
        if number is None or number >= len(trials):
            why = "no member is complete yet; choose one with --trial" if number is None else f"has no trial {number}"
            fail(f"{found.study_id}: {why}", Exit.REFUSED)
        try:
            base = read_spec(session.workspace.studies / found.study_id / SPEC_FILE)
            phases = lineage(connection, trials, number)
            name = f"{found.study_id}-t{number}"
            text = phased_profile(base, Path(base.profile_path or "").read_text("utf-8"), name, spec.params, phases)
            with file.open("x", encoding="utf-8") as written:
                written.write(text)
        except FileExistsError:
            fail(f"{file} exists; choose another name", Exit.REFUSED)
        except (LineageError, SpecError, ProfileChangedError, OSError) as error:
            fail(str(error), Exit.REFUSED)
    course = f"the course of trial {number} of {found.study_id}, in {units.count_of(len(phases), 'phase')}"
    shape = {"id": found.study_id, "trial": number, "file": str(file), "phases": len(phases)}
    print_result(shape, f"{file}: {course}; {shlex.join(['gputui', 'run', str(file)])}", as_json)


@command.command("report")
@click.argument("study", required=False)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="A folder: a page, and with pictures.")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@json_option
@click.pass_obj
def report(session: Session, study: str | None, out: Path | None, at: str | None, as_json: bool) -> None:
    """Report what was found, and the command that trains the best.

    Prints Markdown; with --out it writes report.md and report.html with pictures.
    """
    from gputui.reports.pages import ReportError, write_files
    from gputui.studies.report import StudyFindings, contents, markdown

    moment = None if at is None else typed_moment(at)
    now = time.time() if moment is None else moment
    with closing(session.reader()) as connection:
        found = _find(connection, study, moment)
        spec = study_spec(found)
        trials = read_trials(connection, found.study_id, moment)
        hours = study_gpu_hours(connection, found.study_id, now)
        running = study_wall_seconds(connection, found.study_id, now)
        rungs: dict[int, list[RungValue]] = {}
        for rung in read_rungs(connection, found.study_id, moment):
            rungs.setdefault(rung.number, []).append(rung)
    findings = StudyFindings(found, spec, trials, rungs, hours, running, now, _run_words(session, found, spec))
    if out is not None:
        try:
            write_files(out, contents(findings))
        except ReportError as error:
            fail(str(error), Exit.REFUSED)
    if as_json:
        print_json(report_shape(findings))
    elif out is not None:
        say(f"{found.study_id} in {out / 'report.html'} and {out / 'report.md'}")
    else:
        for line in markdown(findings).splitlines():
            say(line)


def _find(
    connection: sqlite3.Connection, wanted: str | None, at: float | None = None, *, only: bool = False
) -> StudyRecord:
    """The named study, the newest for None; ends the command if it is not there."""

    try:
        return find_study(connection, wanted, at, only=only)
    except StudyLookupError as error:
        fail(str(error), Exit.REFUSED)


def _run_words(session: Session, study: StudyRecord, spec: StudySpec) -> list[str]:
    """The words of `gputui run` that name the study's profile, by its path where its name means none or another one
    here, its target, and the GPUs of a trial where they differ from the profile's."""
    from gputui.profiles.profile_file import ProfileNotFoundError, find, load
    from gputui.studies.study_file import gpus_of

    there = [] if spec.target is None else ["--on", str(spec.target["name"])]
    try:
        path = Path(read_spec(session.workspace.studies / study.study_id / SPEC_FILE).profile_path or "")
        profile = load(path)
    except (SpecError, ProfileError):
        return [spec.profile, *there]
    try:
        is_found = find(spec.profile, session.workspace, Path.cwd()).resolve() == path.resolve()
    except ProfileNotFoundError:
        is_found = False
    gpus = [] if spec.gpus_per_trial == gpus_of(profile) else ["--gpus", str(spec.gpus_per_trial)]
    return [spec.profile if is_found else str(path), *there, *gpus]


def _act(session: Session, verb: str, wanted: str, as_json: bool, **args: Any) -> None:
    """Send a command about a study and print the answer."""
    with closing(session.reader()) as connection:
        study_id = _find(connection, wanted, only=True).study_id
    result = session.command(verb, None, study=study_id, **args)
    print_result(result, str(result.get("text") or f"{study_id} {result.get('state')}"), as_json)
