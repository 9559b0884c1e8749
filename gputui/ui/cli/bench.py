"""`gputui bench`."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from gputui.core import units
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Group, Session, fail, print_json, print_table, say

if TYPE_CHECKING:
    from gputui.reports.summary.facts import RunFacts
    from gputui.reports.summary.speedup import ScalingRow
    from gputui.runs.spec import RunSpec

SINGULARS = {"GPUs": "GPU", "processes": "process"}


@click.group("bench", cls=Group)
def command() -> None:
    """Measure what this machine makes of a profile."""


@command.verb("scaling", changes=True, has_json=True)
@click.argument("profile", shell_complete=completers.profiles)
@click.option("--gpus", metavar="1,2,4", help="Numbers of GPUs to compare.")
@click.option("--processes", metavar="1,2", help="Numbers of CPU processes instead, on a machine without GPUs.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a parameter, such as steps=200.")
def scaling(
    session: Session, profile: str, gpus: str | None, processes: str | None, changes: tuple[str, ...], as_json: bool
) -> None:
    """Compare the speed of a profile on different numbers of GPUs.

    One run follows the other. They are ordinary runs, called PROFILE-x2 and so on: supervised, recovered and kept. The
    batch size is that of each rank, so that more ranks do more work in a step.
    """
    if (gpus is None) == (processes is None):
        fail("say --gpus 1,2,4, or --processes 1,2 on the CPU", Exit.USAGE)
    option = "--gpus"
    unit = "GPUs"
    if gpus is None:
        option = "--processes"
        unit = "processes"
    counts = _counts(option, gpus or processes or "")
    specs = _specs(session, profile, changes, counts, on_gpus=gpus is not None)
    runs = [_measure(session, spec, count, unit, quiet=as_json) for spec, count in zip(specs, counts, strict=True)]
    from gputui.reports.summary.speedup import scaling_rows

    rows = scaling_rows(runs)
    if as_json:
        print_json([row.to_json() for row in rows])
    else:
        _print(rows, unit)
        if gpus is None or session.workspace.scenario.exists():
            cores = units.count_of(len(os.sched_getaffinity(0)), "core")
            simulated = "" if gpus is None else "the GPUs here are simulated; "
            say(f"{simulated}these were processes that share {cores}: it says nothing of GPUs")


def _counts(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    counts = sorted({int(part) for part in parts if part.isascii() and part.isdigit() and 0 < int(part) <= 1024})
    if len(counts) < 2 or len(counts) != len(parts):
        fail(f"{option}: expected at least two different numbers, such as 1,2,4", Exit.USAGE)
    return counts


def _specs(session: Session, name: str, changes: tuple[str, ...], counts: list[int], *, on_gpus: bool) -> list[RunSpec]:
    """The run for each number; ends the command if one of them could never start."""
    from gputui.runs.launchers import LAUNCHERS
    from gputui.ui.cli import launch_spec
    from gputui.ui.cli.gpus import wait_for_gpus

    session.need_agent()
    if on_gpus:
        gpus, problem = wait_for_gpus(session)
        if len(gpus) < counts[-1]:
            if gpus:
                reason = f"this machine shows {units.count_of(len(gpus), 'GPU')}"
            else:
                hint = f"gputui bench scaling {name} --processes 1,2 compares processes on the CPU"
                reason = f"{problem or 'no GPU is visible on this machine'}; {hint}"
            fail(f"--gpus {counts[-1]}: {reason}", Exit.REFUSED)
    profile = launch_spec.load_profile(session, name)
    situation = launch_spec.gpu_situation(session)
    specs = []
    for count in counts:
        gpu_count = count if on_gpus else 0
        specs.append(launch_spec.resolve_spec(profile, changes, str(gpu_count), situation))
    if not LAUNCHERS[specs[0].launcher].starts_ranks:
        text = f"{specs[0].name} starts one process only (launcher: {specs[0].launcher}); there is nothing to compare"
        fail(text, Exit.USAGE)
    if on_gpus:
        return specs
    return [replace(spec, nproc=count) for spec, count in zip(specs, counts, strict=True)]


def _measure(session: Session, spec: RunSpec, count: int, unit: str, *, quiet: bool) -> RunFacts:
    """Launch a run, wait for its end and read what it measured; ends the command if it fails."""
    from gputui.reports.summary.stored_facts import read_facts
    from gputui.store.runs import find_run
    from gputui.ui.cli.run import submit
    from gputui.ui.cli.wait import wait_until_over

    run_id = submit(session, spec, f"{spec.name}-x{count}")
    if not quiet:
        noun = unit if count > 1 else SINGULARS[unit]
        say(f"{run_id}: {count} {noun}")
    if wait_until_over(session, run_id, as_json=False, is_quiet=quiet) != Exit.OK:
        fail(f"{run_id} did not succeed; gputui explain {run_id} says why", Exit.RUN_FAILED)
    with closing(session.reader()) as connection:
        return read_facts(connection, find_run(connection, run_id), time.time())


def _print(rows: list[ScalingRow], unit: str) -> None:
    """Print a row for each number of ranks, and where most time is lost."""

    def share(value: float | None) -> str:
        if value is None:
            return units.UNKNOWN
        return units.percent(100 * value)

    def cell(value: float | None, form: str, factor: float = 1.0) -> str:
        """So many times a value, in a form such as ``{:.1f} ms``; a dash if it is unknown."""
        if value is None:
            return units.UNKNOWN
        return form.format(factor * value)

    table = [
        (
            str(row.ranks),
            units.short_number(row.speed),
            cell(row.speed_up, "{:.2f}×"),
            share(row.efficiency),
            cell(row.step_seconds, "{:.1f} ms", 1000),
            share(row.comm_share),
            share(row.data_share),
            cell(row.extra_comm_seconds, "{:+.1f} ms", 1000),
            cell(row.extra_data_seconds, "{:+.1f} ms", 1000),
            cell(row.extra_other_seconds, "{:+.1f} ms", 1000),
            row.run_id,
        )
        for row in rows
    ]
    head = (
        unit.upper(), "PER SECOND", "SPEED-UP", "EFFICIENCY", "STEP", "COMM", "DATA", "+COMM", "+DATA", "+REST", "RUN",
    )  # fmt: skip
    print_table(head, table)
    if (remark := _lost_time_words(rows[-1], unit)) is not None:
        say(remark)


def _lost_time_words(row: ScalingRow, unit: str) -> str | None:
    """The largest loss of time with the most ranks; None if none is."""
    if row.extra_other_seconds is None:
        return "where it is lost is unknown: the runs report no step_time, comm_time or data_time"
    computation = "in the computation itself: clocks, uneven ranks, shared processors or memory"
    seconds, where = max(
        (row.extra_comm_seconds or 0.0, "in collectives"),
        (row.extra_data_seconds or 0.0, "waiting for data"),
        (row.extra_other_seconds, computation),
    )
    if seconds > 0:
        return f"most is lost {where}: {1000 * seconds:.1f} ms a step with {row.ranks} {unit}"
    return None
