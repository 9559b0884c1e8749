"""`gputui run`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from gputui.core import units
from gputui.core.typed_time import TypedTimeError, parse_begin
from gputui.core.yaml_forms.problems import shorten
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.runs.identity import actor
from gputui.runs.spec import RunSpec
from gputui.runs.submission import submit_run
from gputui.store.gpu_use import known_peaks
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from gputui.ui.cli import completers
from gputui.ui.cli.command_verb import IS_COMMAND, CommandVerb
from gputui.ui.cli.context import Exit, RunName, Session, exit_on, fail, print_json, say, verb
from gputui.ui.cli.gpus import wait_for_gpus

if TYPE_CHECKING:
    from gputui.profiles.profile_file import Profile

ANY_END = ":any"
DECISION_SECONDS = 1.0
"""How long to wait for the agent to decide whether a new run starts; then the run is said to be queued."""

POLL_SECONDS = 0.02


@verb("run", changes=lambda options: not options["dry_run"], cls=CommandVerb, has_json=True)
@click.argument(
    "argv",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="PROFILE | SCRIPT… | -- COMMAND…",
    shell_complete=completers.profiles,
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a parameter.")
@click.option(
    "--gpus",
    metavar="N|0.5|0,1|all",
    shell_complete=completers.gpus,
    help="How many GPUs, a part of one, or which (else as profile or launcher say, or 1).",
)
@click.option(
    "--on",
    "target",
    metavar="TARGET",
    shell_complete=completers.targets,
    help="Where it runs (gputui target list); else here.",
)
@click.option(
    "--time", "time_limit", metavar="TIME", help="Stop it after so long, such as 8h; with --on the job's limit."
)
@click.option("--partition", help="With --on: the job's partition.")
@click.option("--account", help="With --on: the account that pays for the job.")
@click.option("--name", type=RunName(), help="What the run is called (else as the profile or script).")
@click.option(
    "--priority", type=click.IntRange(-1000, 1000), help="Its place in the queue; a higher one starts earlier."
)
@click.option(
    "--after",
    "predecessors",
    multiple=True,
    metavar="RUN",
    shell_complete=completers.predecessors,
    help="Start once this run succeeded; RUN:any: or ended.",
)
@click.option("--begin", metavar="TIME", help="Start at a time: 22:00, in 2h, 2026-12-01 22:00.")
@click.option("--notify", is_flag=True, help="Tell everybody in notify.yaml when it ends or recovers.")
@click.option("--wait", is_flag=True, help="Wait until it ends; the exit code is its outcome.")
@click.option("--dry-run", is_flag=True, help="Only show what would be started.")
def command(
    session: Session,
    argv: tuple[str, ...],
    changes: tuple[str, ...],
    gpus: str | None,
    target: str | None,
    time_limit: str | None,
    partition: str | None,
    account: str | None,
    name: str | None,
    priority: int | None,
    predecessors: tuple[str, ...],
    begin: str | None,
    notify: bool,
    wait: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Launch a run: from a profile, a script, or any command.

    PROFILE is a path that ends with .yaml, a name that gputui profile list lists, or that of a YAML
    file here. What follows a script or -- belongs to it: gputui run --gpus 2 train.py --lr 0.1. A run
    is queued when its GPUs are busy, and survives the end of this terminal.
    """
    profile = _launched_profile(session, argv)
    job = {option: text for option, text in (("partition", partition), ("account", account)) if text is not None}
    limit_seconds = None
    if time_limit is not None and target is not None:
        job["time"] = time_limit
    elif time_limit is not None:
        limit_seconds = _limit_seconds(time_limit)
    begin_at = None
    if begin is not None:
        with exit_on(TypedTimeError, code=Exit.USAGE, before="--begin: "):
            begin_at = parse_begin(begin, time.time())
    if target is not None:
        spec = _resolve_elsewhere(session, profile, changes, gpus, target=target, job=job)
        if dry_run:
            _say_target_plan(session, spec)
            return
    elif job:
        fail(f"--{next(iter(job))} goes with --on TARGET", Exit.USAGE)
    elif dry_run:
        _print_plan_here(session, profile, changes, gpus, limit_seconds=limit_seconds, as_json=as_json)
        return
    else:
        spec = _resolve_here(session, profile, changes, gpus)
    if notify:
        from gputui.ui.cli.notify import recipients_of

        recipients_of(session)  # refuses if there are none
        spec = replace(spec, notify=True)
    session.need_agent()
    spec = _with_limit(replace(spec, begin_at=begin_at), limit_seconds)
    if priority is not None:
        spec = replace(spec, priority=priority)
    if predecessors:
        spec = _with_predecessors(session, spec, predecessors)
    run_id = submit(session, spec, name)
    if not as_json:
        _say_shell_gpus(run_id, spec)
    if wait:
        from gputui.ui.cli.wait import wait_until_over

        raise SystemExit(wait_until_over(session, run_id, as_json))
    if as_json:
        print_json({"id": run_id, "state": RunState.QUEUED})
    else:
        _say_started(session, run_id, spec)


def _launched_profile(session: Session, argv: tuple[str, ...]) -> Profile:
    """The profile that was named, or that of the typed script or command; ends the command if there is none."""
    from gputui.profiles.profile_file import ProfileNotFoundError
    from gputui.ui.cli import launch_spec

    ctx = click.get_current_context()
    if ctx.meta[IS_COMMAND]:
        return launch_spec.typed_profile(argv, ctx.command)
    if len(argv) > 1:
        fail(f"{argv[0]} is a profile, and {argv[1]} none of its options; --set changes a parameter", Exit.USAGE)
    with exit_on(ProfileNotFoundError, code=Exit.USAGE, after="; no file or program has that name either"):
        return launch_spec.load_profile(session, argv[0])


def _limit_seconds(typed: str) -> float:
    """A typed time; ends the command if it is none."""
    seconds = parse_duration(typed)
    if not seconds:
        fail(f"--time: expected a time such as 30min, 1h30m or 2d, found {shorten(typed)}", Exit.USAGE)
    return seconds


def _resolve_elsewhere(
    session: Session,
    profile: Profile,
    changes: tuple[str, ...],
    gpus: str | None,
    *,
    target: str,
    job: Mapping[str, str],
) -> RunSpec:
    """The specification of a run on a target with these options of the job; ends the command if a
    check fails. The target itself is not asked, so that nothing waits for a network."""
    from gputui.profiles.preflight import check_elsewhere
    from gputui.profiles.targets import find_target, with_job_options
    from gputui.ui.cli import launch_spec

    settings = with_job_options(find_target(target, profile.form.targets, session.workspace), job)
    spec = launch_spec.resolve_spec(profile, changes, gpus, situation=None, target=settings)
    launch_spec.refuse_failed(check_elsewhere(spec, session.workspace.state))
    return spec


def _say_target_plan(session: Session, spec: RunSpec) -> None:
    """Print what would be started on the run's target."""
    from gputui.profiles.describe import target_preview

    for line in target_preview(spec, session.workspace.runs):
        say(line)


def _print_plan_here(
    session: Session,
    profile: Profile,
    changes: tuple[str, ...],
    gpus: str | None,
    *,
    limit_seconds: float | None,
    as_json: bool,
) -> None:
    """Print what would be started on this machine, whether or not its checks pass."""
    from gputui.ui.cli import check, launch_spec

    situation = launch_spec.gpu_situation(session)
    spec = launch_spec.resolve_spec(profile, changes, gpus, situation)
    check.print_plan(session, _with_limit(spec, limit_seconds), situation, as_json)


def _resolve_here(session: Session, profile: Profile, changes: tuple[str, ...], gpus: str | None) -> RunSpec:
    """The specification of a run on this machine, whose GPUs an agent reads first; ends the command
    if a check fails."""
    from gputui.profiles.preflight import check as preflight
    from gputui.profiles.resolve import wants_gpus
    from gputui.ui.cli import launch_spec

    session.need_agent()
    if wants_gpus(profile, gpus):
        wait_for_gpus(session)
    situation = launch_spec.gpu_situation(session)
    spec = launch_spec.resolve_spec(profile, changes, gpus, situation)
    past = known_peaks(session.workspace.database, spec.name)
    launch_spec.refuse_failed(preflight(spec, state=session.workspace.state, gpus=situation, past=past))
    return spec


def _with_limit(spec: RunSpec, limit_seconds: float | None) -> RunSpec:
    """The specification with the limit of the command line; without one it keeps its own."""
    if limit_seconds is None:
        return spec
    return replace(spec, time_limit_seconds=limit_seconds)


def _with_predecessors(session: Session, spec: RunSpec, predecessors: tuple[str, ...]) -> RunSpec:
    """The specification of a run that starts after others: ``net-1`` once it succeeded, ``net-1:any`` once it ended."""
    after: list[str] = []
    after_any: list[str] = []
    with closing(session.reader()) as connection:
        for predecessor in predecessors:
            run_id = session.find_run(connection, predecessor.removesuffix(ANY_END), only=True).run_id
            if predecessor.endswith(ANY_END):
                after_any.append(run_id)
            else:
                after.append(run_id)
    return replace(spec, after=tuple(after), after_any=tuple(after_any))


def submit(session: Session, spec: RunSpec, name: str | None) -> str:
    """Hand a run to the agent; returns its ID. Ends the command if it is refused."""
    with closing(session.commander()) as connection, session.writing():
        command_id = submit_run(session.workspace, connection, spec, name=name, actor=actor(), now=time.time())
        return str(session.wait(connection, command_id)["id"])


def _say_shell_gpus(run_id: str, spec: RunSpec) -> None:
    """Say which GPUs a run asks for where the shell's environment decided it."""
    if spec.gpus.shell is None:
        return
    count = "no GPU"
    if spec.gpus.count:
        count = units.count_of(spec.gpus.count, "GPU")
    say(f"{run_id} asks for {count}{spec.gpus.origin_words}; --gpus beats it")


def _say_started(session: Session, run_id: str, spec: RunSpec) -> None:
    """Print the state of a new run and what goes on with it."""
    state = first_state(session, run_id)
    say(f"{run_id} {state}; gputui logs {run_id} -f follows it, gputui stop {run_id} ends it")
    if spec.typed and spec.checkpoints is None:
        from gputui.recovery.actions import NO_CHECKPOINTS

        say(f"after a failure it is started again without a checkpoint: {NO_CHECKPOINTS} (gputui help recipes)")


def first_state(session: Session, run_id: str) -> str:
    """The state of a new run once the agent has decided whether it starts, or what it waits for."""
    deadline = time.monotonic() + DECISION_SECONDS
    with closing(session.reader()) as connection:
        while (run := get_run(connection, run_id)) is not None and run.state is RunState.QUEUED:
            if run.waiting_for:
                return f"queued: {run.waiting_for}"
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
    state = RunState.QUEUED if run is None else run.state
    return str(state)
