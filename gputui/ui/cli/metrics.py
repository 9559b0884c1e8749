"""`gputui metrics`."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from gputui.core import units
from gputui.core.text import clean
from gputui.core.yaml_forms.problems import did_you_mean
from gputui.metrics.curves.live_curves import read_charts
from gputui.metrics.curves.model import AXES, Axis, ChartData, ChartRequest
from gputui.metrics.curves.plot import drawing
from gputui.metrics.draw import export as files
from gputui.runs.stored_spec import known_spec
from gputui.store.metrics import intake, queries
from gputui.store.metrics.intake import intake_words
from gputui.store.runs import Run
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, exit_on, fail, print_json_list, print_table, say, verb
from gputui.ui.views.metric_words import by_interest

PLOT_HEIGHT = 20
PLOT_WIDTH = 80  # where the output is no terminal
MOST_PLOT_WIDTH = 160
BINS_PER_CELL = 4
FILE_BINS = 2000  # finer than the pixels of a picture
_AXIS_NAMES = {"step": "step", "time": "s", "trained": "s of training", "epoch": "epoch"}


@verb("metrics", changes=lambda options: options["loss"] is not None)
@click.argument("run", shell_complete=completers.runs)
@click.argument("names", nargs=-1, shell_complete=completers.metrics)
@click.option("--json", "as_json", is_flag=True, help="Every point, machine-readable.")
@click.option("--plot", is_flag=True, help="Draw it.")
@click.option("--export", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write .csv, .svg or .png.")
@click.option(
    "--axis", type=click.Choice(AXES), default="step", show_default=True, help="Over what (--plot, --export)."
)
@click.option("--smoothing", type=click.FloatRange(0.0, 0.999), default=0.0, help="Weight of the past in an average.")
@click.option("--log-y", is_flag=True, help="Logarithmic values (--plot, --export).")
@click.option(
    "--loss", metavar="NAME", shell_complete=completers.metrics, help="Say which metric is the training loss."
)
def command(
    session: Session,
    run: str,
    names: tuple[str, ...],
    as_json: bool,
    plot: bool,
    file: Path | None,
    axis: Axis,
    smoothing: float,
    log_y: bool,
    loss: str | None,
) -> None:
    """Print the newest value of each metric of a run, or of those named; --json has every point."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run, only=loss is not None)
        measured = by_interest(queries.metric_names(connection, view.run_id), view.roles)
        if loss is not None:
            require_metric(view, measured, loss)
            session.ask("set_loss", view.run_id, loss=loss)
            say(f"{view.run_id}: its loss is {clean(loss)}")
            return
        if names and not measured and not as_json:
            fail(_none_words(connection, view), Exit.REFUSED)
        for name in names:
            require_metric(view, measured, name)
        if as_json:
            print_json_list(queries.points_json(connection, view.run_id, names or measured))
            return
        if not plot and file is None:
            _print_newest(connection, view, names or measured)
            return
        width = min(shutil.get_terminal_size((PLOT_WIDTH, PLOT_HEIGHT)).columns, MOST_PLOT_WIDTH)
        bins = BINS_PER_CELL * width
        if file is not None:
            bins = FILE_BINS
        request = ChartRequest(names or tuple(measured[:1]), axis, bins=bins, smoothing=smoothing)
        data = read_charts(connection, view.run_id, request)
    title = clean(view.run_id)
    if file is not None:
        _write_picture(data, title, file, is_log=log_y)
    if plot:
        draw(data, title, width, log_y=log_y)


def _print_newest(connection: sqlite3.Connection, run: Run, names: Sequence[str]) -> None:
    """Print the newest value of each metric."""
    latest = queries.latest(connection, run.run_id)
    if not latest:
        say(_none_words(connection, run))
        return
    rows = [(name, units.metric_value(latest[name])) for name in names if name in latest]
    print_table(("METRIC", "NEWEST"), rows)


def _write_picture(data: ChartData, title: str, file: Path, *, is_log: bool) -> None:
    """Write the chart in the format that the file's name says."""
    content = files.export(files.kind_of(file.name), drawing(data, title, is_log=is_log))
    with exit_on(OSError, code=Exit.REFUSED, before=f"{file} cannot be written: "):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    say(f"wrote {file}")


def require_metric(run: Run, measured: Sequence[str], name: str) -> None:
    """End the command if a metric is none of the ``measured`` ones of its run."""
    if name not in measured:
        hint = did_you_mean(name, measured) or f"it has {', '.join(measured) or 'none yet'}"
        fail(f"{run.run_id} has no metric {name!r}; {hint}", Exit.REFUSED)


def _none_words(connection: sqlite3.Connection, run: Run) -> str:
    """The reason why a run has no metrics."""
    problem = intake_words(intake.intake(connection, run.run_id))
    spec = known_spec(run)
    if spec is not None and not spec.metrics:
        problem = "its profile says metrics: off; metrics: there says where they are (gputui help profiles)"
    if not problem and not run.attempt:
        problem = f"it has not started ({run.waiting_for or run.state})"
    if problem:
        return f"{run.run_id} has no metrics: {problem}"
    if run.state.is_over:
        return f"{run.run_id} has no metrics"
    return f"{run.run_id} has no metrics yet"


def draw(data: ChartData, title: str, width: int, *, log_y: bool) -> None:
    """Plot the curves on standard output."""
    from gputui.metrics.draw.plot_text import plot_text

    series = [(curve.name, curve.smooth or curve.bins) for curve in data.curves.values()]
    label = _AXIS_NAMES[data.request.axis]
    click.echo(plot_text(series, width, PLOT_HEIGHT, title=title, x_label=label, log_y=log_y))
