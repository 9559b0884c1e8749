"""`gputui doctor`."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, fail, print_json, say, verb

if TYPE_CHECKING:
    from gputui.profiles.doctor.examine import Interpreter
    from gputui.runs.checks import CheckResult

WORDS = {"pass": "✓ PASS", "warn": "▲ WARN", "fail": "✗ FAIL", "skip": "– SKIP"}


@verb("doctor", changes=lambda options: options["bandwidth"])
@click.argument("profile", required=False, shell_complete=completers.profiles)
@click.option("--json", "as_json", is_flag=True, help="The checks, machine-readable.")
@click.option("--bandwidth", is_flag=True, help="Measure copies and all-reduce too, on the free GPUs (slow).")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE.tar.gz",
    help="Write it all down for a bug report, redacted.",
)
def command(session: Session, profile: str | None, as_json: bool, bandwidth: bool, bundle: Path | None) -> None:
    """Check this machine: driver, GPUs, torch, memory, disk, limits, clock, database, agent.

    With PROFILE the interpreter of that profile is asked for its torch, CUDA and NCCL, else that of
    runs whose profile names none. Exit code 1 when something fails.
    """
    from gputui.profiles.doctor.examine import examine

    interpreter = _interpreter(session, profile)
    results = examine(session.workspace, interpreter, time.time(), bandwidth=bandwidth, is_readonly=session.is_readonly)
    if as_json:
        print_json([result.to_json() for result in results])
    else:
        for line in report(results):
            say(line)
    if bundle is not None:
        _write(session, bundle, results)
    if any(result.status == "fail" for result in results):
        raise SystemExit(Exit.RUN_FAILED)


def report(results: list[CheckResult]) -> list[str]:
    """The checks for a person, with a summary."""
    width = max(len(result.name) for result in results)
    lines = []
    for result in results:
        lines.append(f"{WORDS[result.status]}  {result.name:<{width}}  {result.detail}")
        if result.remedy and result.status in ("warn", "fail"):
            lines.append(f"{'':<{width + 8}}  → {result.remedy}")
    counts = Counter[str](result.status for result in results)
    names = {"pass": "passed", "warn": "warnings", "fail": "failed"}
    if counts["warn"] == 1:
        names["warn"] = "warning"
    summary = ", ".join(f"{counts[status]} {word}" for status, word in names.items() if counts[status])
    if counts["skip"]:
        summary += f"; {counts['skip']} skipped"
    return [*lines, "", summary]


def _write(session: Session, path: Path, results: list[CheckResult]) -> None:
    from gputui.profiles.doctor.bundle import write_bundle

    try:
        names, left_out = write_bundle(path, session.workspace, results, os.environ, time.time())
    except FileExistsError:
        fail(f"{path} exists already; choose another name", Exit.REFUSED)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}; choose another place", Exit.REFUSED)
    click.echo(f"wrote {path} ({', '.join(names)}); secrets are redacted, look through it before you send it", err=True)
    for name, why in left_out.items():
        click.echo(f"left out {name}: {why}", err=True)


def _interpreter(session: Session, profile: str | None) -> Interpreter:
    from gputui.profiles.doctor.examine import Interpreter, current_interpreter

    if profile is None:
        return current_interpreter()
    from gputui.profiles.interpreter_checks import environment_of
    from gputui.ui.cli import launch_spec

    spec = launch_spec.resolve_spec(launch_spec.load_profile(session, profile), (), "0", situation=None)
    environ = environment_of(spec, os.environ)
    return Interpreter(str(spec.python or sys.executable), environ, spec.workdir)
