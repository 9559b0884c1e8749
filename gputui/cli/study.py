"""`gputui study`."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputui.charts import units
from gputui.cli.context import EXIT_REFUSED, EXIT_USAGE, Session, fail, print_json, say, typed_moment
from gputui.cli.table import columns

if TYPE_CHECKING:
    from gputui.store.studies import RungValue


@click.group("study")
def command() -> None:
    """Many runs of one profile, to find good parameters.

    Exit codes: 0 success, 1 the study failed, was stopped or paused by itself (--wait), 2 usage or invalid file, 3
    refused, 4 agent unreachable, 130 interrupted.
    """


@command.command("run")
@click.argument("file")
@click.option("--wait", is_flag=True, help="Wait until it ends.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def run(session: Session, file: str, wait: bool, as_json: bool) -> None:
    """Begin a study: a file, or a name in ./studies, the home's studies or those that come with gputui."""
    from gputui.cli.study_launch import launch, load_file

    found = load_file(session, file)
    raise SystemExit(launch(session, found.spec, found.profile, found.source, wait=wait, as_json=as_json))


@command.command("check")
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Show the first ten trials, and the time expected from earlier runs.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def check(session: Session, file: str, dry_run: bool, as_json: bool) -> None:
    """Check a study's file and its profile."""
    from gputui.cli.study_launch import load_file, plan_json, resolve_study
    from gputui.studies.sampling import missing_library

    found = load_file(session, file)
    spec, _ = resolve_study(session, found.spec, found.profile)
    if (missing := missing_library(spec)) is not None:
        fail(missing, EXIT_REFUSED)
    if dry_run:
        plan = plan_json(session, spec)
        print_json(plan) if as_json else print_plan(plan)
    elif as_json:
        print_json({"name": spec.name, "profile": spec.profile, "valid": True})
    else:
        say(f"{spec.name} is valid: {spec.sampler.kind} over {', '.join(spec.tuned)} of {spec.profile}")


def print_plan(plan: dict[str, Any]) -> None:
    """What a study would do, for a person."""
    from gputui.cli.study_launch import point_words

    count = "an open number of" if plan["trials"] is None else str(plan["trials"])
    gpus = plan["gpus_per_trial"]
    on = f"{gpus} GPU{'s' if gpus != 1 else ''} each" if gpus else "on the CPU"
    if plan["trials_per_gpu"] > 1:
        on = f"{plan['trials_per_gpu']} sharing a GPU"
    say(f"{plan['name']}: {count} trials of {plan['profile']}, {on}, {plan['parallel'] or '–'} at a time")
    for number, point in enumerate(plan["first_points"]):
        say(f"  {number}  {point_words(point)}")
    wall, hours = plan["expected_wall_seconds"], plan["expected_gpu_hours"]
    if plan["expected_trial_seconds"] is None:
        say("no run of the profile with these parameters has succeeded yet: how long it takes is not known")
    else:
        took = "–" if hours is None else f"{hours:.2f}"
        say(f"expected without pruning: {units.duration(wall)}, {took} GPU-hours")


@command.command("list")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def list_command(session: Session, at: str | None, as_json: bool) -> None:
    """The same as gputui studies."""
    from gputui.cli.studies import list_studies

    list_studies(session, at, as_json=as_json)


@command.command("show")
@click.argument("study", required=False)
@click.option("--source", is_flag=True, help="Only the study's file.")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def show(session: Session, study: str | None, source: bool, at: str | None, as_json: bool) -> None:
    """One study with its trials, the newest where none is named."""
    from gputui.cli.study_launch import point_words
    from gputui.cli.study_shapes import show_shape
    from gputui.store.studies import StudyNotFoundError, find_study, read_trials

    moment = None if at is None else typed_moment(at)
    with closing(session.reader()) as connection:
        try:
            found = find_study(connection, study, moment)
        except StudyNotFoundError as error:
            fail(str(error), EXIT_REFUSED)
        if source:
            click.echo(found.source, nl=False)
            return
        shape = show_shape(connection, found, time.time(), moment)
        if as_json:
            print_json(shape)
            return
        say(f"{found.study_id} {found.state}" + (f": {found.reason}" if found.reason else ""))
        goal = ", ".join(f"{one['direction']} {one['metric']}" for one in shape["objectives"])
        say(f"{goal} · sampler {shape['sampler']} · pruner {shape['pruner']} · {shape['gpu_hours']:.2f} GPU-hours")
        best = {one["number"] for one in shape["best"]}
        rows = [
            (
                ("★ " if one.number in best else "  ") + str(one.number),
                one.run_id or "–",
                one.state,
                "–" if one.rung is None else str(one.rung),
                ", ".join(units.metric_value(value) for value in one.values) or "–",
                point_words(one.params),
                one.reason or "",
            )
            for one in read_trials(connection, found.study_id, moment)
        ]
        for line in columns(("  TRIAL", "RUN", "STATE", "RUNG", "VALUE", "POINT", ""), rows):
            say(line)


@command.command("pause")
@click.argument("study")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def pause(session: Session, study: str, as_json: bool) -> None:
    """Begin no more trials; those that run go on."""
    _act(session, "study_pause", study, as_json)


@command.command("resume")
@click.argument("study")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def resume(session: Session, study: str, as_json: bool) -> None:
    """Go on with a study that is paused or was stopped."""
    _act(session, "study_resume", study, as_json)


@command.command("stop")
@click.argument("study")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def stop(session: Session, study: str, as_json: bool) -> None:
    """Stop all of its trials and end it."""
    _act(session, "study_stop", study, as_json)


@command.command("extend")
@click.argument("study")
@click.option("--trials", type=click.IntRange(1), help="So many trials more.")
@click.option("--gpu-hours", type=click.FloatRange(0, min_open=True), help="So many GPU-hours more.")
@click.option("--wall", metavar="TIME", help="So much time more, such as 2h.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def extend(
    session: Session, study: str, trials: int | None, gpu_hours: float | None, wall: str | None, as_json: bool
) -> None:
    """Add to the budget while it goes on; a study that is over goes on."""
    from gputui.yaml_forms.quantities import parse_duration

    seconds = None if wall is None else parse_duration(wall)
    if wall is not None and not seconds:
        fail(f"--wall: expected a time such as 30m, 10h or 2d, found {wall!r}", EXIT_USAGE)
    if trials is None and gpu_hours is None and seconds is None:
        fail("give --trials, --gpu-hours or --wall", EXIT_USAGE)
    _act(session, "study_extend", study, as_json, trials=trials, gpu_hours=gpu_hours, wall_seconds=seconds)


@command.command("enqueue")
@click.argument("study")
@click.option("--set", "values", multiple=True, required=True, metavar="KEY=VALUE", help="A tuned parameter's value.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def enqueue(session: Session, study: str, values: tuple[str, ...], as_json: bool) -> None:
    """Add a point by hand; it is the next trial. What is not given is as in the best trial."""
    from gputui.cli.launch_spec import refuse
    from gputui.profiles.params import ParameterError, split_assignments
    from gputui.yaml_forms.document import plain_value

    try:
        given = {name: plain_value(text) for name, text in split_assignments(values).items()}
    except ParameterError as error:
        refuse(list(error.problems), EXIT_USAGE)
    _act(session, "study_enqueue", study, as_json, set=given)


@command.command("export")
@click.argument("study")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lineage", is_flag=True, help="The course of a population's best member as a profile with phases.")
@click.option("--trial", type=click.IntRange(0), help="With --lineage: of this member instead.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def export(session: Session, study: str, file: Path, lineage: bool, trial: int | None, as_json: bool) -> None:
    """Write a study as an Optuna storage (SQLite), which optuna-dashboard opens."""
    if lineage:
        _export_lineage(session, study, file, trial, as_json=as_json)
        return
    if trial is not None:
        fail("--trial goes with --lineage", EXIT_USAGE)
    from gputui.store.studies import StudyNotFoundError, find_study
    from gputui.studies.optuna_export import ExistingFileError, export_study
    from gputui.studies.sampling import install_command
    from gputui.studies.spec import known_study_spec

    with closing(session.reader()) as connection:
        try:
            found = find_study(connection, study)
            spec = known_study_spec(found)
            if spec is None:
                fail(f"{found.study_id} is of a newer gputui; update gputui", EXIT_REFUSED)
            count = export_study(connection, found, spec, file)
        except (StudyNotFoundError, ExistingFileError) as error:
            fail(str(error), EXIT_REFUSED)
        except ImportError:
            fail(f"Optuna is not installed; {install_command()}", EXIT_REFUSED)
    if as_json:
        print_json({"id": found.study_id, "file": str(file), "trials": count})
    else:
        say(f"{count} trials of {found.study_id} written; optuna-dashboard sqlite:///{file}")


def _export_lineage(session: Session, study: str, file: Path, number: int | None, *, as_json: bool) -> None:
    from gputui.runs.spec import SpecError
    from gputui.runs.submission import read_spec
    from gputui.store.studies import StudyNotFoundError, find_study, read_trials
    from gputui.studies import rows
    from gputui.studies.analysis import best_trial
    from gputui.studies.lineage import LineageError, lineage
    from gputui.studies.phased_profile import ProfileChangedError, phased_profile
    from gputui.studies.spec import known_study_spec

    with closing(session.reader()) as connection:
        try:
            found = find_study(connection, study)
        except StudyNotFoundError as error:
            fail(str(error), EXIT_REFUSED)
        spec, trials = known_study_spec(found), read_trials(connection, found.study_id)
        if spec is None or spec.pbt is None:
            fail(f"{found.study_id} trains no population; gputui study report names the command", EXIT_REFUSED)
        if number is None and (best := best_trial(trials, spec.objectives[0])) is not None:
            number = best.number
        if number is None or number >= len(trials):
            why = "no member is complete yet; choose one with --trial" if number is None else f"has no trial {number}"
            fail(f"{found.study_id}: {why}", EXIT_REFUSED)
        try:
            base = read_spec(session.workspace.studies / found.study_id / rows.SPEC_FILE)
            phases = lineage(connection, trials, number)
            name = f"{found.study_id}-t{number}"
            text = phased_profile(base, Path(base.profile_path or "").read_text("utf-8"), name, spec.params, phases)
            with file.open("x", encoding="utf-8") as written:
                written.write(text)
        except FileExistsError:
            fail(f"{file} exists; choose another name", EXIT_REFUSED)
        except (LineageError, SpecError, ProfileChangedError, OSError) as error:
            fail(str(error), EXIT_REFUSED)
    if as_json:
        print_json({"id": found.study_id, "trial": number, "file": str(file), "phases": len(phases)})
    else:
        say(f"{len(phases)} phases of trial {number} of {found.study_id} written; gputui run {file}")


@command.command("report")
@click.argument("study", required=False)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="A folder: a page, and with pictures.")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@click.pass_obj
def report(session: Session, study: str | None, out: Path | None, at: str | None) -> None:
    """What was found, what was cut short and why, and the command that trains the best point, as Markdown; with --out
    report.md and report.html with pictures."""
    from gputui.reports.summary.files import ReportError, write_files
    from gputui.store.studies import StudyNotFoundError, find_study, read_rungs, read_trials, study_gpu_hours
    from gputui.studies.report import StudyFindings, contents, markdown
    from gputui.studies.spec import known_study_spec

    moment = None if at is None else typed_moment(at)
    now = time.time() if moment is None else moment
    with closing(session.reader()) as connection:
        try:
            found = find_study(connection, study, moment)
        except StudyNotFoundError as error:
            fail(str(error), EXIT_REFUSED)
        spec = known_study_spec(found)
        if spec is None:
            fail(f"{found.study_id} is of a newer gputui; update gputui", EXIT_REFUSED)
        trials = read_trials(connection, found.study_id, moment)
        hours = study_gpu_hours(connection, found.study_id, now)
        rungs: dict[int, list[RungValue]] = {}
        for one in read_rungs(connection, found.study_id, moment):
            rungs.setdefault(one.number, []).append(one)
    findings = StudyFindings(found, spec, trials, rungs, hours, now)
    if out is None:
        for line in markdown(findings).splitlines():
            say(line)
        return
    try:
        write_files(out, contents(findings))
    except ReportError as error:
        fail(str(error), EXIT_REFUSED)
    say(f"{found.study_id} in {out / 'report.html'} and {out / 'report.md'}")


def _act(session: Session, verb: str, wanted: str, as_json: bool, **args: Any) -> None:
    """Find the study, send the command, print what became of it."""
    from gputui.store.studies import StudyNotFoundError, find_study

    with closing(session.reader()) as connection:
        try:
            study_id = find_study(connection, wanted).study_id
        except StudyNotFoundError as error:
            fail(str(error), EXIT_REFUSED)
    result = session.command(verb, None, study=study_id, **args)
    if as_json:
        print_json(result)
    else:
        trial = f" trial {result['trial']}" if "trial" in result else ""
        say(f"{study_id}{trial} {result.get('state', 'enqueued')}")
