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
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.store.commands import AgentVerb
from gputui.store.runs import read_runs
from gputui.store.studies import (
    StudyRecord,
    TrialRecord,
    TrialState,
    find_study,
    read_studies,
    read_trials,
    study_wall_seconds,
)
from gputui.studies.analysis import rank_trials
from gputui.studies.json_shapes import report_shape, show_shape, study_shape
from gputui.studies.spec import missing_library, study_spec
from gputui.ui.cli import completers
from gputui.ui.cli.command_verb import IS_COMMAND, CommandVerb
from gputui.ui.cli.context import (
    SCRIPT_SUFFIXES,
    Exit,
    Group,
    Session,
    fail,
    print_json,
    print_result,
    print_table,
    say,
    typed_moment,
)


@click.group("study", cls=Group)
def command() -> None:
    """Many runs of one profile, to find good parameters.

    Exit codes: 0 success, 1 the study failed, was stopped or paused by itself (--wait), 2 usage or
    invalid file, 3 refused, 4 agent unreachable, 130 interrupted.
    """


@command.verb("run", changes=lambda options: not options["dry_run"], cls=CommandVerb, has_json=True)
@click.argument(
    "argv",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="FILE | PROFILE | SCRIPT… | -- COMMAND…",
    shell_complete=completers.study_files,
)
@click.option("--grid", multiple=True, metavar="KEY=A,B,C", help="Run each combination of these values.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="With --grid: a value of every trial.")
@click.option(
    "--metric",
    shell_complete=completers.metrics_of_profile,
    help="With --grid: what is compared.  [default: what the profile names as best, else the loss]",
)
@click.option("--maximize", is_flag=True, help="With --grid: larger is better.")
@click.option("--over", type=click.Choice(("best", "last")), help="With --grid: which value counts.  [default: best]")
@click.option("--parallel", type=click.IntRange(1, 256), help="With --grid: trials at a time (else as many as fit).")
@click.option("--name", help="With --grid: what the study is called (else the profile's name and -grid).")
@click.option(
    "--on",
    "target",
    metavar="TARGET",
    shell_complete=completers.targets,
    help="Where its trials run (gputui target list); else here.",
)
@click.option("--wait", is_flag=True, help="Wait until it ends.")
@click.option("--dry-run", is_flag=True, help="Only show its first points and what they are expected to take.")
def run(
    session: Session,
    /,
    argv: tuple[str, ...],
    target: str | None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Begin a study from a file, or try a grid of a profile, a script or a command.

    FILE is a path, or a name in ./studies, the home's studies or those that ship with gputui. With
    --grid: run each combination of some values of a PROFILE's parameters, or of options that a
    command has: study run --grid lr=0.1,0.2 train.py --lr 0.1. The file of such a study is kept
    (study show --source).
    """
    ctx = click.get_current_context()
    from gputui.ui.cli.study_launch import launch, load_file, load_grid, note_ignored_gpus, planned_study, print_plan

    is_command = ctx.meta[IS_COMMAND]
    if is_command and not options["grid"] and (len(argv) > 1 or argv[0].endswith(SCRIPT_SUFFIXES)):
        line = shlex.join(argv[:1])
        if argv[0].endswith(".py"):
            line = f"python {line}"
        grid = f"gputui study run --grid KEY=A,B -- {line} --KEY A"
        fail(f"{argv[0]} is no study's file; for a grid of a command type: {grid}", Exit.USAGE)
    if len(argv) > 1 and not is_command:
        fail(f"{argv[1]} is no option of a study", Exit.USAGE)
    if options["grid"]:
        grid_command = ctx.command if is_command else None
        study = load_grid(session, argv, target, grid_command, **options)
    elif any(options.values()):
        option = next(name for name, value in options.items() if value).replace("changes", "set")
        fail(f"--{option} goes with --grid; a study's file has it as a key", Exit.USAGE)
    else:
        study = load_file(session, argv[0], target)
    note_ignored_gpus(study)
    if dry_run:
        print_plan(session, planned_study(session, study), as_json=as_json)
        return
    raise SystemExit(launch(session, study.spec, study.profile, study.source, wait=wait, as_json=as_json))


@command.verb("check", changes=False, has_json=True)
@click.argument("file", shell_complete=completers.study_files)
@click.option("--dry-run", is_flag=True, help="Show the first ten trials, and the time expected from earlier runs.")
def check(session: Session, file: str, dry_run: bool, as_json: bool) -> None:
    """Check a study's file and its profile."""
    from gputui.ui.cli.study_launch import load_file, note_ignored_gpus, print_plan, resolve_study

    study = load_file(session, file)
    note_ignored_gpus(study)
    spec, _ = resolve_study(session, study.spec, study.profile)
    if (problem := missing_library(spec)) is not None:
        fail(problem, Exit.REFUSED)
    if dry_run:
        print_plan(session, spec, as_json=as_json)
    else:
        text = f"{spec.name} is valid: {spec.method} over {', '.join(spec.tuned)} of {spec.profile}"
        print_result({"name": spec.name, "profile": spec.profile, "valid": True}, text, as_json)


@command.verb("list", changes=False, has_json=True)
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
def list_command(session: Session, at: str | None, as_json: bool) -> None:
    """The studies, newest first."""
    moment = typed_moment(at)
    connection = session.reader_or_empty()
    studies = read_studies(connection, moment)
    now = time.time()
    if moment is not None:
        now = moment
    if as_json:
        print_json([study_shape(connection, study, now, moment) for study in studies])
        return
    session.note_missing_agent(is_active=any(study.state.needs_agent for study in studies))
    if not studies:
        say("no study yet; gputui study run FILE begins one, gputui study run PROFILE --grid lr=0.1,0.05 a grid")
        return
    rows = [study_row(connection, study, now, moment) for study in studies]
    print_table(("STUDY", "STATE", "TRIALS", "PRUNED", "BEST", "TIME", ""), rows)


@command.verb("show", changes=False, has_json=True)
@click.argument("study", required=False, shell_complete=completers.studies)
@click.option("--source", is_flag=True, help="Only the study's file.")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
def show(session: Session, study: str | None, source: bool, at: str | None, as_json: bool) -> None:
    """One study with its trials, the newest where none is named."""
    moment = typed_moment(at)
    with closing(session.reader()) as connection:
        record = find_study(connection, study, moment)
        if source:
            click.echo(record.source, nl=False)
            return
        now = time.time()
        waiting = dict[str, str]()
        if moment is None:
            waiting = waiting_trials(connection, record.study_id, now)
        shape = show_shape(connection, record, now, at=moment, workspace=session.workspace, waiting=waiting)
        if as_json:
            print_json(shape)
            return
        say(": ".join(filter(None, (f"{record.study_id} {record.state}", record.remark))))
        goal = ", ".join(f"{objective['direction']} {objective['metric']}" for objective in shape["objectives"])
        spec = study_spec(record)
        facts = [goal, spec.method]
        if spec.pbt is None:
            facts.append(f"pruner {spec.pruner.kind}")
        if shape["target"] is not None:
            facts.append(f"on {shape['target']}")
        say(" · ".join([*facts, f"{units.gpu_hours(shape['gpu_hours'])} GPU-hours"]))
        say(f"optuna-dashboard {shape['storage']}")
        best = {trial["number"] for trial in shape["best"]}
        trials = read_trials(connection, record.study_id, moment)
        rows = [
            trial_row(trial, is_best=trial.number in best, waits_for=waiting.get(trial.run_id or ""))
            for trial in trials
        ]
        print_table(("  TRIAL", "RUN", "STATE", "RUNG", "VALUE", "POINT", ""), rows)


def _add_verb(name: str, agent_verb: AgentVerb, effect: str) -> None:
    """Add a command that only names a study."""

    @command.verb(name, changes=True, has_json=True, help=effect)
    @click.argument("study", shell_complete=completers.studies)
    def act(session: Session, study: str, as_json: bool) -> None:
        _act(session, agent_verb, study, as_json)


_add_verb("pause", "study_pause", "Begin no more trials; those that run go on.")
_add_verb("resume", "study_resume", "Go on with a study that is paused or was stopped.")
_add_verb("stop", "study_stop", "Stop all of its trials and end it.")


@command.verb("extend", changes=True, has_json=True)
@click.argument("study", shell_complete=completers.studies)
@click.option("--trials", type=click.IntRange(1), help="So many trials more.")
@click.option("--gpu-hours", type=click.FloatRange(0, min_open=True), help="So many GPU-hours more.")
@click.option("--wall", metavar="TIME", help="So much time more, such as 2h.")
def extend(
    session: Session, study: str, trials: int | None, gpu_hours: float | None, wall: str | None, as_json: bool
) -> None:
    """Add to the budget while it goes on; a study that is over goes on."""
    seconds = None if wall is None else parse_duration(wall)
    if wall is not None and not seconds:
        fail(f"--wall: expected a time such as 30m, 1h30m or 2d, found {wall!r}", Exit.USAGE)
    if trials is None and gpu_hours is None and seconds is None:
        fail("give --trials, --gpu-hours or --wall", Exit.USAGE)
    _act(session, "study_extend", study, as_json, trials=trials, gpu_hours=gpu_hours, wall_seconds=seconds)


@command.verb("enqueue", changes=True, has_json=True)
@click.argument("study", shell_complete=completers.studies)
@click.option("--set", "values", multiple=True, required=True, metavar="KEY=VALUE", help="A tuned parameter's value.")
def enqueue(session: Session, study: str, values: tuple[str, ...], as_json: bool) -> None:
    """Add a point by hand; it is the next trial. What is not given is as in the best trial."""
    from gputui.core.yaml_forms.document import plain_value
    from gputui.profiles.params import split_assignments

    point = {name: plain_value(text) for name, text in split_assignments(values).items()}
    _act(session, "study_enqueue", study, as_json, set=point)


@command.verb("prune", changes=True, has_json=True)
@click.argument("study", shell_complete=completers.studies)
@click.argument("trial", type=click.IntRange(0))
def prune(session: Session, study: str, trial: int, as_json: bool) -> None:
    """Cut a running trial short now, as the pruner does."""
    _act(session, "study_prune", study, as_json, trial=trial)


@command.verb("keep", changes=True, has_json=True)
@click.argument("study", shell_complete=completers.studies)
@click.argument("trial", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Leave it to the pruner again.")
def keep(session: Session, study: str, trial: int, undo: bool, as_json: bool) -> None:
    """Let a trial run to its end: the pruner does not cut it short."""
    _act(session, "study_keep", study, as_json, trial=trial, keep=not undo)


@command.verb("export", changes=False, has_json=True)
@click.argument("study", shell_complete=completers.studies)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lineage", is_flag=True, help="The lineage of a population's best member as a profile with phases.")
@click.option("--trial", type=click.IntRange(0), help="With --lineage: of this member instead.")
def export(session: Session, study: str, file: Path, lineage: bool, trial: int | None, as_json: bool) -> None:
    """Copy a study to an Optuna storage in SQLite."""
    from gputui.studies.export import export_lineage, export_storage

    if trial is not None and not lineage:
        fail("--trial goes with --lineage", Exit.USAGE)
    with closing(session.reader()) as connection:
        record = find_study(connection, study)
        study_id = record.study_id
        folder = session.workspace.studies / record.study_id
        if lineage:
            number, phases = export_lineage(connection, folder, record, file, trial)
            shape = {"id": study_id, "trial": number, "file": str(file), "phases": phases}
            title = f"the lineage of trial {number} of {study_id}, in {units.count_of(phases, 'phase')}"
            text = f"{file}: {title}; {shlex.join(['gputui', 'run', str(file)])}"
        else:
            count = export_storage(connection, folder, record, file)
            shape = {"id": study_id, "file": str(file), "trials": count}
            text = f"{units.count_of(count, 'trial')} of {study_id} written; optuna-dashboard sqlite:///{file}"
    print_result(shape, text, as_json)


@command.verb("report", changes=False, has_json=True)
@click.argument("study", required=False, shell_complete=completers.studies)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="A folder: a page, and with pictures.")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
def report(session: Session, study: str | None, out: Path | None, at: str | None, as_json: bool) -> None:
    """Report what was found, and the command that trains the best.

    Prints Markdown; with --out it writes report.md and report.html with pictures.
    """
    from gputui.reports.pages import write_files
    from gputui.studies.report import contents, markdown, read_findings

    moment = typed_moment(at)
    with closing(session.reader()) as connection:
        record = find_study(connection, study, moment)
        findings = read_findings(connection, session.workspace, record, time.time(), moment)
    if out is not None:
        write_files(out, contents(findings))
    if as_json:
        print_json(report_shape(findings))
    elif out is not None:
        say(f"{record.study_id} in {out / 'report.html'} and {out / 'report.md'}")
    else:
        for line in markdown(findings).splitlines():
            say(line)


def _act(session: Session, agent_verb: AgentVerb, study: str, as_json: bool, **args: Any) -> None:
    """Send a command about a study and print the answer."""
    with closing(session.reader()) as connection:
        study_id = find_study(connection, study, only=True).study_id
    result = session.ask(agent_verb, None, study=study_id, **args)
    print_result(result, str(result.get("text") or f"{study_id} {result.get('state')}"), as_json)


def study_row(
    connection: sqlite3.Connection, study: StudyRecord, now: float, at: float | None = None
) -> tuple[str, ...]:
    """Id, state, trials, pruned ones, best value, time and reason of a study in a list."""
    spec = study_spec(study)
    trials = read_trials(connection, study.study_id, at)
    over_count = sum(trial.state.is_over for trial in trials)
    pruned_count = sum(trial.state is TrialState.PRUNED for trial in trials)
    best = rank_trials(trials, spec.objectives)
    value = units.UNKNOWN
    if len(spec.objectives) > 1:
        value = f"Pareto front: {units.count_of(len(best), 'trial')}"
    elif best:
        value = units.metric_value(best[0].value)
    progress = str(over_count)
    if spec.wanted_trials is not None:
        # Points that a person added, reruns and earlier runs count beyond the budget.
        progress += f"/{max(spec.wanted_trials, len(trials))}"
    duration = units.duration(study_wall_seconds(connection, study.study_id, now))
    return study.study_id, study.state, progress, str(pruned_count), value, duration, study.remark


def waiting_trials(connection: sqlite3.Connection, study_id: str, now: float) -> dict[str, str]:
    """What each run of a study that waits in a queue waits for, by its id."""
    # Lists of studies need no words of runs.
    from gputui.ui.views.run_words import waiting_words

    reasons = {}
    for active in read_runs(connection, active_only=True):
        if active.study_id == study_id and (reason := waiting_words(active, now)):
            reasons[active.run_id] = reason
    return reasons


def trial_row(trial: TrialRecord, *, is_best: bool, waits_for: str | None = None) -> tuple[str, ...]:
    """Number, run, state, rung, values, point and a remark of a trial in a list. ``waits_for`` is
    what its run waits for in a queue."""
    # Lists of studies need no profiles.
    from gputui.studies.launch import point_words

    origins = {
        "enqueued": "by hand",
        "warm": "an earlier run",
        "rerun": f"trial {trial.parent} again, to the end",
        "outside": "run by another process",
    }
    remarks = []
    if trial.origin in origins:
        remarks.append(origins[trial.origin])
    if trial.generation is not None:
        parent = "itself" if trial.parent is None else f"trial {trial.parent}"
        remarks.append(f"from {parent} after milestone {trial.generation}")
    if trial.request == "keep" and not trial.state.is_over:
        remarks.append("kept")
    if waits_for:
        remarks.append(waits_for)
    if trial.reason:
        remarks.append(trial.reason)
    mark = "★" if is_best else " "
    state = trial.state.word
    if waits_for and trial.state is TrialState.RUNNING:
        state = "waiting"
    rung = units.UNKNOWN if trial.rung is None else str(trial.rung)
    return (
        f"{mark} {trial.number}",
        trial.run_id or units.UNKNOWN,
        state,
        rung,
        ", ".join(map(units.metric_value, trial.values or (trial.shown_value,))),
        point_words(trial.params),
        "; ".join(remarks),
    )
