"""`gputui explain`."""

from __future__ import annotations

import sqlite3
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gputui.core import units
from gputui.store import alerts, checkpoints
from gputui.store.alerts import AlertView
from gputui.store.attempts import read_attempts
from gputui.store.events import SINK_KINDS, read_data_events
from gputui.store.json_shapes import alert_shape
from gputui.store.metrics import intake
from gputui.store.metrics.intake import intake_words
from gputui.store.runs import Run
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, fail, print_json, say, terminal_columns, verb
from gputui.ui.views.words import dated_clock

WIDTH = 100  # longer lines of prose are hard to read
MAX_ALERTS = 8  # the explanation stays on one screen


@verb("explain", changes=False, has_json=True)
@click.argument("run", required=False, shell_complete=completers.runs)
@click.option("--evidence", is_flag=True, help="Only name the folders where the evidence is kept, one a line.")
def command(session: Session, run: str | None, evidence: bool, as_json: bool) -> None:
    """Explain what happened to a run (by default the newest), why each decision was taken, and its state now.

    --json is that of gputui show with the paragraphs, alerts and folders of evidence.
    """
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        folders = evidence_folders(session.workspace.run_dir(view.run_id))
        if evidence and as_json:
            print_json([str(folder) for folder in folders])
            return
        if evidence and not folders:
            fail(f"no evidence is kept of {view.run_id}; it met no incident, or its folder is gone", Exit.REFUSED)
        if evidence:
            for folder in folders:
                say(str(folder))
            return
        story = [*story_of(connection, view), *_remarks(connection, view)]
        raised = alerts.of_run(connection, view.run_id)
        if as_json:
            print_json(_shape(session, connection, view, story=story, raised=raised, folders=folders))
            return
    if raised:
        story.append(alerts_sentence(raised))
    if folders:
        noun = "attempt" if len(folders) == 1 else "attempts"
        story.append(f"Evidence of {noun} {', '.join(folder.name for folder in folders)}: {folders[0].parent}")
    print_paragraphs(story)


def _remarks(connection: sqlite3.Connection, view: Run) -> Iterator[str]:
    """The sentences behind the story: on the run's checkpoints, and on problems with what it wrote."""
    from gputui.recovery.checkpoints.resumable import checkpoints_sentence, seen_checkpoints_sentence, spans_of
    from gputui.runs.stored_spec import known_spec

    if rows := checkpoints.of_run(connection, view.run_id):
        spec = known_spec(view)
        if spec is not None and spec.checkpoints is None:
            yield seen_checkpoints_sentence(rows)
        else:
            spans = spans_of(view, read_attempts(connection, view.run_id), time.time())
            yield checkpoints_sentence(rows, spans)
    for event in read_data_events(connection, view.run_id):
        # The state of sinks is shown elsewhere.
        if event.kind not in SINK_KINDS:
            yield f"{event.message[:1].upper()}{event.message[1:]}."
    if problem := intake_words(intake.intake(connection, view.run_id)):
        yield f"{problem}."


def _shape(
    session: Session,
    connection: sqlite3.Connection,
    view: Run,
    story: Sequence[str],
    raised: Sequence[AlertView],
    folders: Sequence[Path],
) -> dict[str, Any]:
    """The JSON of ``gputui explain --json``."""
    from gputui.ui.cli.show import details_shape, read_details

    now = time.time()
    return {
        **details_shape(read_details(session, connection, view, now)),
        "paragraphs": list(story),
        "alerts": [alert_shape(alert, now) for alert in raised],
        "evidence_folders": [str(folder) for folder in folders],
    }


def story_of(connection: sqlite3.Connection, view: Run) -> list[str]:
    """The history of a run, one paragraph per attempt."""
    from gputui.recovery.run_history import RunHistory
    from gputui.recovery.story import tell

    history = RunHistory.read(connection, view)
    return tell(history, history.failures(), history.resumptions(), now=time.time())


def print_paragraphs(paragraphs: Sequence[str]) -> None:
    """Print wrapped paragraphs, with an empty line between them."""
    width = min(WIDTH, terminal_columns() or WIDTH)
    for index, paragraph in enumerate(paragraphs):
        if index:
            say("")
        for line in textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False):
            say(line)


def alerts_sentence(raised: Sequence[AlertView]) -> str:
    """The alerts of a run, newest last."""
    sentences = []
    for alert in raised[-MAX_ALERTS:]:
        if alert.cleared_at is None:
            end = "active"
        else:
            end = f"resolved after {units.duration(alert.cleared_at - alert.raised_at)}"
        sentence = alert.sentence.removeprefix(f"{alert.run_id}: ")
        sentences.append(f"{dated_clock(alert.raised_at, time.time())} {sentence} ({end})")
    earlier_count = len(raised) - len(sentences)
    if earlier_count:
        sentences.append(f"{earlier_count} earlier ones: gputui alerts --run {raised[0].run_id}")
    return f"Alerts: {'; '.join(sentences)}"


def evidence_folders(run_dir: Path) -> list[Path]:
    """The folders with evidence of the run's incidents, by attempt."""

    def rank(folder: Path) -> tuple[int, str]:
        digits = folder.name.split("-")[0]
        if digits.isdigit():
            return int(digits), folder.name
        return 0, folder.name

    try:
        folders = [entry for entry in (run_dir / "incidents").iterdir() if entry.is_dir()]
    except OSError:
        return []
    return sorted(folders, key=rank)
