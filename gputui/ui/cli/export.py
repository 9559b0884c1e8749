"""`gputui export`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import click

from gputui.core.redaction import redact_text
from gputui.reports.export.formats import FORMATS, Format, absolute_target
from gputui.store.metrics import queries
from gputui.store.runs import Run
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, exit_on, fail, say, verb
from gputui.ui.cli.metrics import require_metric


@verb("export", changes=lambda options: options["follow"] or FORMATS[options["name"]].is_address)
@click.argument("run", shell_complete=completers.runs)
@click.argument("names", nargs=-1)
@click.option("--to", "name", type=click.Choice(tuple(FORMATS)), required=True, help="Which form.")
@click.option("--out", help="File, folder or (mlflow) tracking URI; else named after the run.")
@click.option("--follow", is_flag=True, help="Until the run ends; continues where it was.")
@click.option("--force", is_flag=True, help="Replace a file; in a tracker, write another run.")
def command(
    session: Session, run: str, names: tuple[str, ...], name: Format, out: str | None, follow: bool, force: bool
) -> None:
    """Write what a run measured for other tools: all metrics, or those NAMES. Nothing is sent but
    to an MLflow server that --out names.

    A profile's key sinks does the same for each of its runs while it lives.
    """
    if follow and force:
        fail("--force replaces and --follow continues; give one of them", Exit.USAGE)
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        where = f"{view.run_id}.{name}"
        if out:
            where = out
        elif out is None and FORMATS[name].is_address:
            where = f"sqlite:///{name}.db"
        elif FORMATS[name].is_folder:
            where = f"{view.run_id}-{name}"
        target = absolute_target(name, where, Path.cwd())
        if not follow:
            count = _once(connection, view, names, name=name, target=target, force=force)
    if follow:
        count = _follow(session, view, names, name, target)
    plural = "" if count == 1 else "s"
    say(f"{count} {FORMATS[name].unit}{plural} of {view.run_id} in {redact_text(where)}")


def _once(
    connection: sqlite3.Connection, view: Run, names: tuple[str, ...], name: Format, target: str, force: bool
) -> int:
    from gputui.reports.export.sink import TargetTakenError
    from gputui.reports.export.subject import read_subject
    from gputui.reports.export.whole import export

    measured = queries.metric_names(connection, view.run_id)
    if not measured:
        fail(f"{view.run_id} has measured nothing yet; --follow waits for it", Exit.REFUSED)
    for metric in names:
        require_metric(view, measured, metric)
    effect = "writes it once more" if FORMATS[name].is_address else "replaces it"
    with exit_on(TargetTakenError, code=Exit.REFUSED, after=f"; --force {effect}"):
        subject = read_subject(connection, view.run_id, name, target, names)
        return export(subject, name, target, replaces=force)


def _follow(session: Session, view: Run, names: tuple[str, ...], name: Format, target: str) -> int:
    from gputui.reports.export.follow import Follower
    from gputui.runs.identity import HeldElsewhereError
    from gputui.store.database import StoreError

    if not view.state.is_over:
        session.need_agent()
    destination = redact_text(target)
    try:
        with exit_on(StoreError, sqlite3.Error, code=Exit.UNREACHABLE):
            return Follower(session.workspace, view.run_id, name, target, names).run()
    except HeldElsewhereError:
        fail(f"another process follows {view.run_id} to {destination} already", Exit.REFUSED)
    except OSError as error:
        fail(f"cannot write {error.filename or destination}: {error.strerror or error}", Exit.REFUSED)
    except KeyboardInterrupt:
        say(f"{view.run_id} continues; the same command resumes the export")
        raise SystemExit(Exit.INTERRUPTED) from None
