"""Checks of how a live attempt is set up: its metrics, and the checkpoint that it loaded."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sqlite3 import Connection

from gputui.agent.context import AgentContext
from gputui.agent.jobs import JobKey, Purpose
from gputui.core.files import open_regular
from gputui.metrics.formats import PRINTED_STREAMS
from gputui.recovery.resumptions import resumptions
from gputui.recovery.watch.attempt import AttemptWatch
from gputui.recovery.watch.rules import Observation
from gputui.runs.checkpoint_files import list_checkpoints
from gputui.runs.command import checkpoint_directory, in_run
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.logs import FIRST_NODE
from gputui.runs.spec import RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import read_attempts
from gputui.store.metrics.step_lines import StepLines

METRICS_SECONDS = 6.0
# A run that trains has printed so many lines without a metrics line.
PRINTED_LINES = 200
# So many lines of an attempt show how far apart they are.
START_LINES = 3
JOB_SECONDS = 60.0
_READ_BYTES = 256 << 10


@dataclass(slots=True)
class SetupChecks:
    """The checks of one attempt, each of which observes something once. Times are monotonic."""

    metrics_at: float = -math.inf
    is_start_known: bool = False

    def check(
        self, context: AgentContext, watch: AttemptWatch, spec: RunSpec, reported: Collection[str]
    ) -> Iterator[Observation]:
        """Do the checks that are due; ``reported`` are the kinds that were observed before."""
        lines = watch.progress.lines
        resumed_from = watch.record.resumed_from
        if spec.metrics and not watch.had_lines and "no_metrics" not in reported:
            yield from self._metrics(context, watch, spec)
        if resumed_from is not None and not self.is_start_known and lines >= START_LINES:
            self.is_start_known = True
            yield from _another_checkpoint(context.connection, watch, resumed_from)
        if (rank := watch.lone_rank) is not None and "no_first_rank" not in reported:
            text = (
                f"all of its metrics lines have rank {rank}, and gputui watches and draws those of "
                "rank 0 or without a rank: let rank 0 write them; if it is no process's rank, such "
                "as LoRA's, give it another name"
            )
            yield Observation("no_first_rank", text=text)

    def _metrics(self, context: AgentContext, watch: AttemptWatch, spec: RunSpec) -> Iterator[Observation]:
        """Observe a run that trains without a metrics line; it would look like one that is
        starting."""
        if context.monotonic() < self.metrics_at + METRICS_SECONDS:
            return
        record = watch.record
        run_dir = context.workspace.run_dir(watch.record.run_id)
        began = record.started_at or record.created_at
        work = partial(missing_metrics, spec, run_dir, record.number, began)
        key = JobKey(Purpose.SETUP, record.run_id, record.number)
        job = context.jobs.ask(key, work, deadline_seconds=JOB_SECONDS)
        if job is not None:
            self.metrics_at = context.monotonic()
            with suppress(OSError):
                if (text := job.result()) is not None:
                    yield Observation("no_metrics", text=text)


def _another_checkpoint(connection: Connection, watch: AttemptWatch, checkpoint: str) -> Iterator[Observation]:
    """A later checkpoint than it was given: one that is passed over, perhaps because it was written
    after a NaN."""
    record = watch.record
    attempts = read_attempts(connection, record.run_id)
    ledger = checkpoints.of_run(connection, record.run_id)
    loaded = resumptions(attempts, StepLines(connection, record.run_id), ledger)
    if loaded.get(record.number) == "later":
        first = next(row.first_step for row in attempts if row.number == record.number)
        text = (
            f"steps begin at {first}, after {Path(checkpoint).name} (step {record.resumed_step}), which "
            "was given: the script found a later one, which gputui had passed over; pass it "
            "{checkpoint} in the profile's resume, or let it read $GPUTUI_CHECKPOINT"
        )
        yield Observation("not_resumed", text=text, since=first)


def missing_metrics(spec: RunSpec, run_dir: Path, attempt: int, began: float) -> str | None:
    """A sentence once the attempt has saved a checkpoint or its first rank printed PRINTED_LINES
    lines; None before. Call it in a job, and only while there is no metrics line."""
    paths = [source.path for source in spec.metrics if source.path is not None]
    files = [str(in_run(path, spec, run_dir)) for path in paths]
    unread = [f"no metrics line was read from {' or '.join(files)}"] if files else []
    printed = [source.kind for source in spec.metrics if source.kind in PRINTED_STREAMS]
    if spec.learns_metrics:
        unread.append("nothing that it has printed or written looks like metrics")
    if printed:
        unread.append(f"nothing in its {printed[0]} matches the patterns of its profile")
    folder = checkpoint_directory(spec, run_dir)
    newest = None
    if folder is not None and spec.checkpoints is not None:
        with suppress(OSError):
            newest = next(iter(list_checkpoints(folder, spec.checkpoints.pattern)), None)
    if newest is not None and newest.modified_ns / 1e9 >= began:
        return f"it has saved {Path(newest.path).name}, but {' and '.join(unread)}"
    node_dir = run_dir / "attempts" / str(attempt) / FIRST_NODE
    outputs = LAUNCHERS[spec.launcher].log_files(node_dir, spec.nproc)
    # Updates of a progress bar, which end with a carriage return, count too.
    counts = (len(text.splitlines()) for text in _readable(outputs))
    if any(count >= PRINTED_LINES for count in counts):
        return f"it has printed {PRINTED_LINES} lines, but {' and '.join(unread)}"
    return None


def _readable(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        with suppress(OSError), open_regular(path) as file:
            yield file.read(_READ_BYTES)
