"""`gputui export`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from gputui.cli.context import EXIT_REFUSED, Session, fail, say
from gputui.profiles.nearest import nearest

if TYPE_CHECKING:
    from gputui.reports.export.subject import Subject

Format = Literal["csv", "jsonl", "parquet", "tensorboard", "mlflow", "wandb"]
FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet", "tensorboard", "mlflow", "wandb")


@click.command("export")
@click.argument("run")
@click.argument("names", nargs=-1)
@click.option("--to", "wanted", type=click.Choice(FORMATS), required=True, help="In which form.")
@click.option("--out", help="File, folder or (mlflow) tracking URI; else in this folder, named after the run.")
@click.pass_obj
def command(session: Session, run: str, names: tuple[str, ...], wanted: str, out: str | None) -> None:
    """Write what a run measured for other tools: all metrics, or those named. Nothing is sent anywhere."""
    from gputui.reports.export.subject import ExportError, read_subject

    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        subject = read_subject(connection, view.run_id, names)
        if not subject.metrics:
            fail(f"{view.run_id} has measured nothing yet", EXIT_REFUSED)
        if names:
            known = read_subject(connection, view.run_id).metrics
            for name in names:
                if name not in known:
                    meant = nearest(name, known)
                    hint = f"did you mean {meant}?" if meant else f"it has {', '.join(known)}"
                    fail(f"{view.run_id} has no metric {name!r}; {hint}", EXIT_REFUSED)
        try:
            count, where = _write(cast("Format", wanted), subject, out)
        except ExportError as error:
            fail(str(error), EXIT_REFUSED)
    noun = "steps" if wanted in ("tensorboard", "mlflow", "wandb") else "lines"
    say(f"{count} {noun} of {view.run_id} in {where}")


def _write(wanted: Format, subject: Subject, out: str | None) -> tuple[int, str]:
    """Write it; how much and where."""
    from gputui.reports.export import tables, trackers

    run_id = subject.run.run_id
    if wanted == "mlflow":
        uri = out or "sqlite:///mlflow.db"
        return trackers.write_mlflow(subject, uri), uri
    if wanted in ("tensorboard", "wandb"):
        target = Path(out or f"{run_id}-{wanted}")
        write = trackers.write_tensorboard if wanted == "tensorboard" else trackers.write_wandb
        return write(subject, target), str(target)
    target = Path(out or f"{run_id}.{wanted}")
    writers = {"csv": tables.write_csv, "jsonl": tables.write_jsonl, "parquet": tables.write_parquet}
    return writers[wanted](subject, target), str(target)
