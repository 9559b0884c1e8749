"""`gputui check --log`: try a profile's metrics on an existing log."""

from __future__ import annotations

import shutil
from pathlib import Path

from gputui.core import units
from gputui.core.text import clean
from gputui.metrics.draw.bins import reduce
from gputui.metrics.draw.glyphs import sparkline
from gputui.metrics.draw.plot_text import plot_text
from gputui.metrics.formats import Reading, format_named
from gputui.metrics.log_trial import Trial, try_log
from gputui.profiles.profile_file import Profile
from gputui.runs.spec import ROLE_NAMES
from gputui.store.metrics.roles import training_loss
from gputui.ui.cli.context import Exit, fail, print_json, print_table, say

_READ = ("auto", "csv", "jsonl")
MAX_BYTES = 64 << 20  # it is read into memory; no trial's curve is longer
PLOT_HEIGHT = 12
SPARK_WIDTH = 24


def read_log(log: Path) -> bytes:
    """The beginning of a log. Raises OSError."""
    with log.open("rb") as file:
        return file.read(MAX_BYTES)


def show_trial(profile: Profile, log: Path, *, as_json: bool) -> None:
    """Parse the log with the patterns of the profile, or as CSV or JSON lines, or learn what is in it, and print what
    would be drawn. Ends the command with Exit.USAGE if nothing would."""
    sources = [source for source in profile.form.metrics.sources if source.is_printed or source.source in _READ]
    if not sources:
        elsewhere = ", ".join(dict.fromkeys(source.source for source in profile.form.metrics.sources))
        state = "says metrics: off"
        if elsewhere:
            state = f"has its metrics read from elsewhere ({elsewhere})"
        fail(
            f"{profile.name} {state}; to have lines of a log read, write in it, with the words of such a line: "
            r"metrics: {source: output, patterns: ['step (?P<step>\d+) loss (?P<loss>\S+)']}",
            Exit.USAGE,
        )
    source = next((source for source in sources if source.is_printed), sources[0])
    patterns = tuple(source.patterns or ())
    kind = "stdout" if source.is_printed or source.source == "auto" else source.source
    reading = Reading(patterns, source.step, source.units, batch_size=_batch_size(profile))
    trial = try_log(read_log(log), format_named(kind, reading), patterns)
    if as_json:
        print_json(trial.to_json())
    else:
        _print(trial, log, profile.form.metrics.loss)
    if not trial.points:
        raise SystemExit(Exit.USAGE)


def _batch_size(profile: Profile) -> int | None:
    """The samples of a batch by the profile's parameters; None if none says so."""
    names = ROLE_NAMES["batch_size"]
    if "batch_size" in profile.form.roles:
        names = (profile.form.roles["batch_size"],)
    sizes = (profile.form.params[name].default for name in names if name in profile.form.params)
    return next((size for size in sizes if type(size) is int), None)


def _print(trial: Trial, log: Path, loss: str | None) -> None:
    summary = f"{clean(str(log))}: {units.count(trial.accepted)} of {units.count_of(trial.lines, 'line')} are metrics"
    if trial.last_step is not None:
        summary += f", the last at step {units.count(trial.last_step)}"
        if trial.total_steps is not None:
            summary += f" of {units.count(int(trial.total_steps))}"
    say(summary)
    if trial.points:
        _print_points(trial, loss)
    if trial.backwards is not None:
        number, before, after = trial.backwards
        say("")
        say(
            f"▲ steps go back, from {before} to {after} in line {number}: steps of each pass lie over each other; name "
            "the groups epoch and iter, or say step: epoch"
        )
    for number, reason, text in trial.rejected[:3]:
        say(f"▲ line {number} cannot be used ({reason}): {clean(text)}")
    if trial.near:
        say("")
        say("nearly matched:")
        for near in trial.near:
            say(f"  line {near.number}: {clean(near.text)}")
            say(f"    fits {clean(near.fits)}")
            say(f"    then expected {clean(near.expected)}, found {clean(near.actual) or 'the end of the line'}")
    if not trial.points:
        say("")
        say("nothing would be drawn; gputui help profiles says what patterns understand")


def _print_points(trial: Trial, loss: str | None) -> None:
    """Print a table of the metrics, and draw the loss, else the first one."""
    rows = [
        (
            name,
            str(len(points)),
            units.metric_value(points[0][1]),
            units.metric_value(points[-1][1]),
            sparkline([bin_.last for bin_ in reduce(points, SPARK_WIDTH)], SPARK_WIDTH).strip(),
        )
        for name, points in trial.points.items()
    ]
    say("")
    print_table(("METRIC", "VALUES", "FIRST", "LAST", ""), rows)
    names = (loss, training_loss(trial.points), *trial.points)
    name = next(name for name in names if name in trial.points)
    width = min(shutil.get_terminal_size((80, PLOT_HEIGHT)).columns, 100)
    bins = reduce(trial.points[name], 2 * width)
    say("")
    for line in plot_text([(name, bins)], width, PLOT_HEIGHT, title=name, x_label="step").splitlines()[1:]:
        say(line)
