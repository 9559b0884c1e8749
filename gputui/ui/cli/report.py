"""`gputui report`."""

from __future__ import annotations

import math
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import click

from gputui.core.typed_time import TypedTimeError, parse_moment
from gputui.core.yaml_forms.problems import did_you_mean
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.reports.pages import write_files
from gputui.reports.summary import report
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
        runs = _runs(session, connection, names, since, now)
        newest = sorted(run.sequence for run in runs)[-report.MAX_PICTURED :]
        facts = [read_facts(connection, run, now, with_pictures=run.sequence in newest) for run in runs]
        others = [read_facts(connection, run, now) for run in siblings(connection, runs)]
    subject = ", ".join(run.run_id for run in runs)
    name = runs[0].run_id
    if since is not None:
        subject = f"all runs since {since}"
        name = "since"
    summary = report.make(f"Report of {subject}", now, facts, others=others, prices=prices, thresholds=thresholds)
    folder = out or Path(f"report-{name}")
    if not as_json or out is not None:
        write_files(folder, report.contents(summary))
    failures = [
        f"{run_id}: {gate.gate} failed: {gate.text} (threshold {gate.threshold:g} {gate.unit})"
        for run_id, verdicts in summary.verdicts.items()
        for gate in verdicts
        if gate.outcome == "fail"
    ]
    if as_json:
        print_json(report.shapes(summary))
    else:
        sentence = verdict(facts[0]) if len(facts) == 1 else verdict_on_all(facts)
        for line in (sentence, *failures, f"{folder / 'report.html'} written"):
            say(line)
    if failures:
        raise SystemExit(Exit.RUN_FAILED)


def _runs(
    session: Session, connection: sqlite3.Connection, names: tuple[str, ...], since: str | None, now: float
) -> list[Run]:
    if since is None:
        runs = [session.find_run(connection, name) for name in names]
        return list({run.run_id: run for run in runs}.values())
    with exit_on(TypedTimeError, code=Exit.USAGE, before="--since: "):
        # A bare span counts back from now.
        sign = "" if parse_duration(since) is None else "-"
        moment = parse_moment(f"{sign}{since}", now)
    runs = active_since(connection, moment)
    if not runs:
        fail(f"no run was active since {since}; gputui ps lists them all", Exit.REFUSED)
    return runs


def _thresholds(changes: tuple[str, ...]) -> dict[str, float]:
    thresholds = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in GATE_THRESHOLDS:
            hint = did_you_mean(name, GATE_THRESHOLDS) or f"there are {', '.join(GATE_THRESHOLDS)}"
            fail(f"--gate: no gate {name!r}; {hint}", Exit.USAGE)
        try:
            thresholds[name] = float(text)
        except ValueError:
            thresholds[name] = math.nan
        if not math.isfinite(thresholds[name]):
            example = f"{name}={GATE_THRESHOLDS[name]:g}"
            fail(f"--gate: {name} needs a number, such as {example}", Exit.USAGE)
    return thresholds
