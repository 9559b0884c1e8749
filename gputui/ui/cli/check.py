"""`gputui check`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gputui.core import units
from gputui.core.redaction import Redactor
from gputui.core.yaml_forms.problems import ProfileError
from gputui.runs.checks import CheckResult
from gputui.runs.redaction import redact_launch, secrets_of
from gputui.runs.spec import RunSpec
from gputui.store.gpu_use import known_peaks
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, print_json, refuse, say, verb

if TYPE_CHECKING:
    from gputui.profiles.gpu_checks import GpuSituation

GPUS_CHECK = "gpus"


@verb("check", changes=False)
@click.argument("profile", shell_complete=completers.profiles)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a parameter of the profile.")
@click.option(
    "--gpus",
    metavar="N|0,1|all",
    shell_complete=completers.gpus,
    help="How many GPUs, or which (else as the profile says).",
)
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Only read an old log as the profile would have it read, and show what would be drawn.",
)
@click.option("--json", "as_json", is_flag=True, help="The checks, machine-readable.")
def command(
    session: Session, profile: str, changes: tuple[str, ...], gpus: str | None, log: Path | None, as_json: bool
) -> None:
    """Check a profile, and show the exact command, environment and GPUs that it would start with."""
    from gputui.profiles.preflight import check, problems_of_rest
    from gputui.profiles.profile_file import find, load
    from gputui.ui.cli import launch_spec

    path = find(profile, session.workspace, Path.cwd())
    try:
        loaded = load(path)
    except ProfileError as error:
        refuse([*str(error).splitlines(), *problems_of_rest(path, error, session.workspace.state)], Exit.USAGE)
    if log is not None:
        from gputui.ui.cli.log_trial import show_trial

        show_trial(loaded, log, as_json=as_json)
        return
    situation = launch_spec.gpu_situation(session)
    spec, gpu_problems = launch_spec.resolve_without_gpus(loaded, changes, gpus, situation)
    past = known_peaks(session.workspace.database, spec.name)
    results = check(spec, state=session.workspace.state, gpus=situation, past=past)
    if gpu_problems:
        problem = "; ".join(gpu_problems).removeprefix("gpus: ")
        results = [_with_gpu_problem(result, problem) for result in results]
    if as_json:
        print_json([result.to_json() for result in results])
    else:
        print_plan(session, spec, situation, as_json=False)
        say("")
        for result in results:
            say(result.line)
        say("")
        say(verdict(results, _run_command(profile, changes, gpus)))
    if any(result.status == "fail" for result in results):
        code = Exit.REFUSED if gpu_problems else Exit.USAGE
        raise SystemExit(code)


def _with_gpu_problem(result: CheckResult, problem: str) -> CheckResult:
    """The result of a check; that of the GPUs fails."""
    if result.name != GPUS_CHECK:
        return result
    return CheckResult(GPUS_CHECK, "fail", problem)


def _run_command(profile: str, changes: Sequence[str], gpus: str | None) -> str:
    """The command that launches what was checked."""
    argv = ["gputui", "run", profile]
    for change in changes:
        argv += ["--set", change]
    if gpus is not None:
        argv += ["--gpus", gpus]
    return shlex.join(argv)


def verdict(results: Sequence[CheckResult], launch: str) -> str:
    """``✓ ready: gputui run cnn``: the result of all checks for the command ``launch``."""
    failures = [result.name for result in results if result.status == "fail"]
    if failures:
        return f"✗ {launch} would be refused: {', '.join(failures)}"
    warnings = [result.name for result in results if result.status == "warn"]
    if warnings:
        return f"▲ ready but for {units.count_of(len(warnings), 'warning')} ({', '.join(warnings)}): {launch}"
    return f"✓ ready: {launch}"


def print_plan(session: Session, spec: RunSpec, situation: GpuSituation | None, as_json: bool) -> None:
    """Print command, environment and GPUs, without secrets."""
    from gputui.profiles.describe import describe, preview_launch
    from gputui.profiles.gpu_checks import likely_gpus

    gpus = () if situation is None else likely_gpus(spec, situation)
    launch = preview_launch(spec, runs=session.workspace.runs, gpus=gpus)
    if as_json:
        shape = redact_launch(launch, Redactor(secrets_of(spec))).to_json()
        print_json({**shape, "gpus": list(spec.gpus.uuids), "gpu_count": spec.gpus.count, "nproc": spec.nproc})
        return
    for line in describe(spec, launch, situation):
        say(line)
