"""`gputui export`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gputui.core.yaml_forms.problems import did_you_mean
from gputui.reports.export.formats import FORMATS, Format
from gputui.store.metrics import queries
from gputui.ui.cli.context import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, Session, fail, say

if TYPE_CHECKING:
    from gputui.store.runs import Run


@click.command("export")
@click.argument("run")
@click.argument("names", nargs=-1)
@click.option("--to", "name", type=click.Choice(tuple(FORMATS)), required=True, help="In which form.")
@click.option("--out", help="File, folder or (mlflow) tracking URI; else in this folder, named after the run.")
@click.option("--follow", is_flag=True, help="Follow until the run ends; continues where it was.")
@click.option("--force", is_flag=True, help="Replace a file that is there; in a tracker, write the run once more.")
@click.pass_obj
def command(
    session: Session, run: str, names: tuple[str, ...], name: Format, out: str | None, follow: bool, force: bool
) -> None:
    """Write what a run measured for other tools: all metrics, or those NAMES. Nothing is sent but to an MLflow server
    that --out names.

    A profile's key sinks does the same for each of its runs while it lives.
    """
    if follow and force:
        fail("--force replaces and --follow continues; give one of them", EXIT_USAGE)
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        where = out or _default_target(name, view.run_id)
        if not follow:
            _refuse_unknown(connection, view, names)
            written = _once(connection, view, names, name, where, force)
    if follow:
        written = _follow(session, view, names, name, where)
    noun = FORMATS[name].unit + ("" if written == 1 else "s")
    say(f"{written} {noun} of {view.run_id} in {_shown(where)}")


def _default_target(name: Format, run_id: str) -> str:
    if FORMATS[name].is_address:
        return f"sqlite:///{name}.db"
    return f"{run_id}-{name}" if FORMATS[name].is_folder else f"{run_id}.{name}"


def _shown(where: str) -> str:
    from gputui.core.redaction import redact_text

    return redact_text(where)


def _refuse_unknown(connection: sqlite3.Connection, view: Run, names: tuple[str, ...]) -> None:
    known = queries.metric_names(connection, view.run_id)
    if not known:
        fail(f"{view.run_id} has measured nothing yet; --follow waits for it", EXIT_REFUSED)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"it has {', '.join(known)}"
            fail(f"{view.run_id} has no metric {name!r}; {hint}", EXIT_REFUSED)


def _once(
    connection: sqlite3.Connection, view: Run, names: tuple[str, ...], name: Format, where: str, force: bool
) -> int:
    from gputui.reports.export.once import export
    from gputui.reports.export.sink import ExportError, TargetTakenError
    from gputui.reports.export.sink_factory import absolute_target
    from gputui.reports.export.subject import read_subject

    target = absolute_target(name, where, Path.cwd())
    try:
        return export(connection, read_subject(connection, view.run_id, names), name, target, replace=force)
    except TargetTakenError as error:
        fail(f"{error}; --force {'writes it once more' if FORMATS[name].is_address else 'replaces it'}", EXIT_REFUSED)
    except ExportError as error:
        fail(str(error), EXIT_REFUSED)


def _follow(session: Session, view: Run, names: tuple[str, ...], name: Format, where: str) -> int:
    from gputui.reports.export.follower import Follower, Target
    from gputui.reports.export.sink import ExportError
    from gputui.reports.export.sink_factory import absolute_target
    from gputui.runs.identity import HeldElsewhereError
    from gputui.store.database import StoreError

    target = absolute_target(name, where, Path.cwd())
    if not view.state.is_over:
        session.need_agent()
    workspace = session.workspace
    run_dir = workspace.run_dir(view.run_id)
    try:
        return Follower(workspace.database, Target(view.run_id, run_dir, name, target, names)).run()
    except HeldElsewhereError:
        fail(f"another process follows {view.run_id} to {_shown(where)} already", EXIT_REFUSED)
    except ExportError as error:
        fail(str(error), EXIT_REFUSED)
    except OSError as error:
        fail(f"cannot write {error.filename or _shown(where)}: {error.strerror or error}", EXIT_REFUSED)
    except (StoreError, sqlite3.Error) as error:
        fail(str(error), EXIT_UNREACHABLE)
    except KeyboardInterrupt:
        say(f"{view.run_id} continues; the same command resumes the export")
        raise SystemExit(EXIT_INTERRUPTED) from None
