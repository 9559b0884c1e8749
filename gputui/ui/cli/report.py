"""`gputui report`."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputui.store.runs import Run
from gputui.ui.cli.context import EXIT_OK, EXIT_REFUSED, EXIT_RUN_FAILED, EXIT_USAGE, Session, fail, print_json, say

if TYPE_CHECKING:
    from gputui.reports.summary.facts import Lost, RunFacts
    from gputui.reports.summary.page import Report
    from gputui.reports.summary.tally import ExpectedRate


@click.command("report")
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option("--since", metavar="TIME", help="All runs that were active since: 24h, 7d, 2026-11-20.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The folder; else report-… in this one.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures; files are written only with --out.")
@click.option("--gates", "with_gates", is_flag=True, help="Exit code 1 when a quality gate fails.")
@click.option("--gate", "changes", metavar="NAME=NUMBER", multiple=True, help="Another threshold for a gate.")
@click.option("--price-per-kwh", type=click.FloatRange(0.0), help="Price of a kilowatt-hour.")
@click.option("--price-per-gpu-hour", type=click.FloatRange(0.0), help="Price of a GPU-hour, beside the energy.")
@click.option("--currency", help="Currency of the prices, for display.")
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    since: str | None,
    out: Path | None,
    as_json: bool,
    with_gates: bool,
    changes: tuple[str, ...],
    price_per_kwh: float | None,
    price_per_gpu_hour: float | None,
    currency: str | None,
) -> None:
    """How well runs did, what they cost, how they scale: JSON files and one page. Several runs are compared."""
    from gputui.reports.summary.costs import Prices
    from gputui.reports.summary.files import ReportError, write_files
    from gputui.reports.summary.report import contents, shapes

    if bool(names) == (since is not None):
        fail("give run names or --since TIME (see gputui report --help)", EXIT_USAGE)
    thresholds = _thresholds(changes)
    prices = Prices(price_per_kwh, price_per_gpu_hour, currency)
    now = time.time()
    with closing(session.reader()) as connection:
        runs = _runs(session, connection, names, since, now)
        title = "Report of " + (f"all runs since {since}" if since is not None else ", ".join(r.run_id for r in runs))
        report = _report(connection, runs, title, now, thresholds, prices)
    folder = out or Path("report-" + ("since" if since is not None else runs[0].run_id))
    if not as_json or out is not None:
        try:
            write_files(folder, contents(report))
        except ReportError as error:
            fail(str(error), EXIT_REFUSED)
    failed = [
        (run_id, verdict)
        for run_id, verdicts in report.verdicts.items()
        for verdict in verdicts
        if verdict.outcome == "fail"
    ]
    if as_json:
        print_json(shapes(report))
    else:
        say(f"{len(runs)} run{'' if len(runs) == 1 else 's'} in {folder / 'report.html'}")
        for run_id, one in failed:
            say(f"{run_id}: {one.gate} failed: {one.text} (threshold {one.threshold:g} {one.unit})")
    raise SystemExit(EXIT_RUN_FAILED if with_gates and failed else EXIT_OK)


def _runs(
    session: Session, connection: sqlite3.Connection, names: tuple[str, ...], since: str | None, now: float
) -> list[Run]:
    if since is None:
        named = [session.find_run(connection, name) for name in names]
        return list({run.run_id: run for run in named}.values())
    from gputui.reports.summary.stored_facts import active_since
    from gputui.ui.tui.dialogs.typed_time import SPAN, TypedTimeError, parse_moment

    try:
        # A bare span counts back from now.
        moment = parse_moment(f"-{since}" if SPAN.fullmatch(since.strip()) else since, now)
    except TypedTimeError as error:
        fail(f"--since: {error}", EXIT_USAGE)
    found = active_since(connection, moment)
    if not found:
        fail(f"no run was active since {since}; gputui ps lists them all", EXIT_REFUSED)
    return found


def _report(
    connection: sqlite3.Connection,
    runs: list[Run],
    title: str,
    now: float,
    thresholds: Mapping[str, float],
    prices: Any,
) -> Report:
    from gputui.reports.summary.facts import MAX_PICTURED
    from gputui.reports.summary.report import make
    from gputui.reports.summary.stored_facts import siblings

    pictured = {run.run_id for run in sorted(runs, key=lambda each: each.sequence)[-MAX_PICTURED:]}
    named = [_facts(connection, run, now, with_pictures=run.run_id in pictured) for run in runs]
    others = [_facts(connection, run, now, with_pictures=False) for run in siblings(connection, runs)]
    return make(title, now, named, others, thresholds, prices)


def _facts(connection: sqlite3.Connection, run: Run, now: float, *, with_pictures: bool) -> RunFacts:
    from gputui.reports.summary.stored_facts import read_facts

    return read_facts(
        connection,
        run,
        now=now,
        lost=_lost(connection, run),
        expected=_expected(connection, run),
        with_pictures=with_pictures,
    )


def _lost(connection: sqlite3.Connection, run: Run) -> Lost | None:
    """The cost of the run's failures."""
    from gputui.recovery.costs import costs, total
    from gputui.reports.summary.facts import Lost
    from gputui.runs.executors import chooses_start
    from gputui.runs.spec import known_spec
    from gputui.store.attempts import read_attempts
    from gputui.store.metrics.step_times import StepTimes
    from gputui.store.run_history import read_decisions, read_incidents

    found = total(
        costs(
            read_attempts(connection, run.run_id),
            read_incidents(connection, run.run_id),
            read_decisions(connection, run.run_id),
            StepTimes(connection, run.run_id),
            start_is_chosen_there=chooses_start(known_spec(run)),
        ).values()
    )
    if found is None:
        return None
    return Lost(found.lost_gpu_hours, found.lost_seconds, found.lost_steps, found.incidents, found.unknown)


def _expected(connection: sqlite3.Connection, run: Run) -> ExpectedRate:
    """The expected learning rate: reported by the script, else by the schedule of the profile."""
    from gputui.recovery.watch.course import expected_rate
    from gputui.recovery.watch.overrides import of_profile
    from gputui.runs.spec import spec_of
    from gputui.store.attempts import read_attempts

    schedule = None
    peaks: dict[int, float] = {}
    try:
        spec = spec_of(run)
        schedule = of_profile(spec.alerts).schedule
        for attempt in read_attempts(connection, run.run_id):
            value = attempt.params.get(spec.role("lr", attempt.params) or "")
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                peaks[attempt.number] = float(value)
    except ValueError:
        schedule = None  # stored by another version of gputui; the script may still report it

    def expected(attempt: int, step: int, values: Mapping[str, float]) -> tuple[float, float] | None:
        return expected_rate(schedule, step, values, peaks.get(attempt))

    return expected


def _thresholds(changes: tuple[str, ...]) -> dict[str, float]:
    from gputui.core.yaml_forms.problems import did_you_mean
    from gputui.reports.summary.thresholds import GATE_THRESHOLDS

    found = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in GATE_THRESHOLDS:
            hint = did_you_mean(name, GATE_THRESHOLDS) or f"there are {', '.join(GATE_THRESHOLDS)}"
            fail(f"--gate: no gate {name!r}; {hint}", EXIT_USAGE)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            fail(f"--gate: {name} needs a number, such as {name}={GATE_THRESHOLDS[name]:g}", EXIT_USAGE)
        found[name] = value
    return found
