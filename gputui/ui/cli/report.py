"""`gputui report`."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from gputui.core.typed_time import TypedTimeError, parse_moment
from gputui.core.yaml_forms.problems import did_you_mean
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.reports.pages import write_files
from gputui.reports.summary import report
from gputui.reports.summary.facts import RunFacts
from gputui.reports.summary.gates import GATE_THRESHOLDS
from gputui.reports.summary.stored_facts import active_since, read_facts, siblings
from gputui.reports.summary.story import verdict, verdict_on_all
from gputui.store.runs import Run
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, exit_on, fail, print_json, say, verb


@verb("report", changes=False)
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=completers.runs)
@click.option("--since", metavar="TIME", help="All runs active since: 24h, 7d, 2026-11-20.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures; files only with --out.")
@click.option("--gates", "with_gates", is_flag=True, help="Judge; exit code 1 if a gate fails.")
@click.option("--gate", "changes", metavar="NAME=NUMBER", multiple=True, help="Gate's threshold.")
@click.option("--price-per-kwh", type=click.FloatRange(0.0), help="Price of a kilowatt-hour.")
@click.option("--price-per-gpu-hour", type=click.FloatRange(0.0), help="Price of a GPU-hour.")
@click.option("--currency", help="Currency of the prices, for display.")
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
    """Write results, costs and scaling of runs as JSON files and one page. Several runs are
    compared. --gates, or a --gate, judges them."""
    if bool(names) == (since is not None):
        fail("give run names or --since TIME (see gputui report --help)", Exit.USAGE)
    thresholds = None
    if with_gates or changes:
        thresholds = _thresholds(changes)
    prices = report.Prices(price_per_kwh, price_per_gpu_hour, currency)
    now = time.time()
    with closing(session.reader()) as connection:
        if since is None:
            runs = _named_runs(session, connection, names)
        else:
            runs = _runs_active_since(connection, since, now)
        facts = _facts(connection, runs, now)
        others = [read_facts(connection, run, now) for run in siblings(connection, runs)]
    if since is None:
        subject = ", ".join(run.run_id for run in runs)
        folder_name = f"report-{runs[0].run_id}"
    else:
        subject = f"all runs since {since}"
        folder_name = "report-since"
    summary = report.make(f"Report of {subject}", now, facts, others=others, prices=prices, thresholds=thresholds)
    failures = _failed_gates(summary)
    folder = out or Path(folder_name)
    if not as_json or out is not None:
        write_files(folder, report.contents(summary))
    if as_json:
        print_json(report.shapes(summary))
    else:
        _say_results(facts, failures, folder)
    if failures:
        raise SystemExit(Exit.RUN_FAILED)


def _thresholds(changes: Sequence[str]) -> dict[str, float]:
    """The thresholds given as ``NAME=NUMBER``."""
    thresholds = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in GATE_THRESHOLDS:
            hint = did_you_mean(name, GATE_THRESHOLDS) or f"there are {', '.join(GATE_THRESHOLDS)}"
            fail(f"--gate: no gate {name!r}; {hint}", Exit.USAGE)
        try:
            threshold = float(text)
        except ValueError:
            threshold = math.nan
        if not math.isfinite(threshold):
            example = f"{name}={GATE_THRESHOLDS[name]:g}"
            fail(f"--gate: {name} needs a number, such as {example}", Exit.USAGE)
        thresholds[name] = threshold
    return thresholds


def _named_runs(session: Session, connection: sqlite3.Connection, names: Sequence[str]) -> list[Run]:
    """The runs with these names, each once."""
    runs = {}
    for name in names:
        run = session.find_run(connection, name)
        runs[run.run_id] = run
    return list(runs.values())


def _runs_active_since(connection: sqlite3.Connection, since: str, now: float) -> list[Run]:
    with exit_on(TypedTimeError, code=Exit.USAGE, before="--since: "):
        is_span = parse_duration(since) is not None
        if is_span:
            # Without a sign, a span counts back from now.
            moment = parse_moment(f"-{since}", now)
        else:
            moment = parse_moment(since, now)
    runs = active_since(connection, moment)
    if not runs:
        fail(f"no run was active since {since}; gputui ps lists them all", Exit.REFUSED)
    return runs


def _facts(connection: sqlite3.Connection, runs: Sequence[Run], now: float) -> list[RunFacts]:
    """The facts of each run, with pictures of the newest."""
    pictured = sorted(run.sequence for run in runs)[-report.MAX_PICTURED :]
    return [read_facts(connection, run, now, with_pictures=run.sequence in pictured) for run in runs]


def _failed_gates(summary: report.Report) -> list[str]:
    """A sentence about each gate that failed."""
    failures = []
    for run_id, verdicts in summary.verdicts.items():
        for gate in verdicts:
            if gate.outcome == "fail":
                threshold = f"threshold {gate.threshold:g} {gate.unit}"
                failures.append(f"{run_id}: {gate.gate} failed: {gate.text} ({threshold})")
    return failures


def _say_results(facts: Sequence[RunFacts], failures: Sequence[str], folder: Path) -> None:
    if len(facts) == 1:
        say(verdict(facts[0]))
    else:
        say(verdict_on_all(facts))
    for failure in failures:
        say(failure)
    say(f"{folder / 'report.html'} written")
