"""`gputui metrics`."""

from __future__ import annotations

import shutil
from contextlib import closing

import click

from gputui.charts import units
from gputui.charts.safe_text import clean
from gputui.cli.context import EXIT_REFUSED, Session, fail, print_json_list, say
from gputui.cli.table import columns
from gputui.profiles.nearest import nearest
from gputui.store import metric_queries

PLOT_HEIGHT = 20
PLOT_WIDTH = 80


@click.command("metrics")
@click.argument("run")
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Every point, machine-readable.")
@click.option("--plot", is_flag=True, help="Draw it.")
@click.option("--log-y", is_flag=True, help="Logarithmic values (--plot).")
@click.pass_obj
def command(session: Session, run: str, names: tuple[str, ...], as_json: bool, plot: bool, log_y: bool) -> None:
    """What a run measured: the newest value of each metric, or every point of those named."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        known = metric_queries.metric_names(connection, view.run_id)
        for name in names:
            if name not in known:
                meant = nearest(name, known)
                hint = f"did you mean {meant}?" if meant else f"it has {', '.join(known) or 'none yet'}"
                fail(f"{view.run_id} has no metric {name!r}; {hint}", EXIT_REFUSED)
        if as_json:
            print_json_list(metric_queries.points_json(connection, view.run_id, names or known))
            return
        if plot:
            draw(
                [
                    (name, [(float(point.step), point.value) for point in points if point.step is not None])
                    for name in names or known[:1]
                    for points in [metric_queries.series(connection, view.run_id, name)[0]]
                ],
                clean(view.run_id),
                log_y,
            )
            return
        latest = metric_queries.latest(connection, view.run_id)
        if not latest:
            say(f"{view.run_id} has written no metrics yet")
            return
        rows = [(name, units.metric_value(value)) for name, value in latest.items() if not names or name in names]
        for line in columns(("METRIC", "NEWEST"), rows):
            say(line)


def draw(series: list[tuple[str, list[tuple[float, float]]]], title: str, log_y: bool) -> None:
    from gputui.charts.plot import plot_text

    width = min(shutil.get_terminal_size((PLOT_WIDTH, PLOT_HEIGHT)).columns, 160)
    labelled = [(clean(name), points) for name, points in series]
    click.echo(plot_text(labelled, width, PLOT_HEIGHT, title=title, x_label="step", log_y=log_y))
