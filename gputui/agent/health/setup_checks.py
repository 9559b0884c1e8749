"""Checks of how an attempt is set up: its metrics, its process group, the checkpoint that it loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.core.config import open_regular
from gputui.metrics.formats import PRINTED_STREAMS
from gputui.recovery.checkpoints.files import list_checkpoints
from gputui.recovery.history import resumptions
from gputui.recovery.watch.attempt import AttemptWatch
from gputui.recovery.watch.rules import Observation
from gputui.runs.command import checkpoint_directory, in_run
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.logs import node_folder
from gputui.runs.process_readings import is_connected
from gputui.runs.processes import AttemptProcess
from gputui.runs.spec import RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import read_attempts
from gputui.store.metrics.step_times import StepTimes

METRICS_SECONDS = 6.0
# A run that trains has printed so many lines without a metrics line.
PRINTED_LINES = 200
# Interval of the checks for a process group, from the first step until one is found.
GROUP_SECONDS = 15.0
UNGROUPED_CHECKS = 3
# So many lines of an attempt show how far apart they are.
START_LINES = 3
JOB_SECONDS = 60.0
_READ_BYTES = 256 << 10
_GROUP = re.compile(
    rb"^[^#\n]*\b(?:init_process_group|init_device_mesh|DistributedDataParallel|FullyShardedDataParallel|fully_shard)\b",
    re.MULTILINE,
)


@dataclass(slots=True)
class SetupChecks:
    """The checks of one attempt, each of which observes something once. Times are monotonic seconds."""

    metrics_job: Job[str | None] | None = None
    metrics_at: float = -math.inf
    # The last check for a process group, and how many of them found ranks without connections.
    group_at: float = -math.inf
    ungrouped_checks: int = 0
    script_job: Job[bool] | None = None
    is_grouped: bool = False
    is_start_known: bool = False

    def look(
        self,
        context: AgentContext,
        watch: AttemptWatch,
        spec: RunSpec,
        processes: Callable[[], list[AttemptProcess]],
        reported: Collection[str],
    ) -> Iterator[Observation]:
        """Do the checks that are due; ``reported`` are the kinds that were observed before."""
        if spec.metrics and not watch.had_lines and "no_metrics" not in reported:
            yield from self._metrics(context, watch, spec)
        if watch.progress.lines and not self.is_grouped and "no_group" not in reported:
            yield from self._group(context, watch, spec, processes)
        if watch.record.resumed_from is not None and not self.is_start_known and watch.progress.lines >= START_LINES:
            self.is_start_known = True
            yield from _another_checkpoint(context, watch, watch.record.resumed_from)
        if (rank := watch.lone_rank) is not None:
            text = (
                f"all of its metrics lines have rank {rank}, and gputui watches and draws those of rank 0 or without a "
                "rank: let rank 0 write them; if it is no process's rank, such as LoRA's, give it another name"
            )
            yield Observation("no_first_rank", text=text)

    def _metrics(self, context: AgentContext, watch: AttemptWatch, spec: RunSpec) -> Iterator[Observation]:
        """Why a run that trains has no metrics line; it would look like one that is starting."""
        if self.metrics_job is not None and self.metrics_job.is_over:
            job, self.metrics_job = self.metrics_job, None
            text = None
            with suppress(OSError):
                text = job.result()
            if text is not None:
                yield Observation("no_metrics", text=text)
        elif self.metrics_job is None and context.monotonic() >= self.metrics_at + METRICS_SECONDS:
            self.metrics_at, record = context.monotonic(), watch.record
            began = record.started_at or record.created_at
            work = partial(missing_metrics, spec, context.workspace.run_dir(record.run_id), record.number, began)
            name = f"looking for what {record.run_id} prints and saves"
            self.metrics_job = context.jobs.start(name, work, deadline_seconds=JOB_SECONDS)

    def _group(
        self, context: AgentContext, watch: AttemptWatch, spec: RunSpec, processes: Callable[[], list[AttemptProcess]]
    ) -> Iterator[Observation]:
        """Ranks that have made no process group although their script's text makes one. A member of a
        group has a connection to its store or to another rank; a rank with any connection counts as one."""
        if context.monotonic() < self.group_at + GROUP_SECONDS:
            return
        self.group_at = context.monotonic()
        ranks = [process for process in processes() if process.rank is not None]
        if (size := len({process.rank for process in ranks})) < 2:
            return
        self.is_grouped = any(is_connected(process.identity.pid) for process in ranks)
        self.ungrouped_checks += not self.is_grouped
        if self.ungrouped_checks == UNGROUPED_CHECKS and not self.is_grouped:
            name = f"reading the script of {watch.record.run_id}"
            self.script_job = context.jobs.start(name, partial(makes_group, spec), deadline_seconds=JOB_SECONDS)
        elif self.script_job is not None and self.script_job.is_over and not self.is_grouped:
            # The ranks of other scripts may be meant to work apart.
            self.is_grouped = True
            with suppress(OSError):
                self.is_grouped = not self.script_job.result()
            if not self.is_grouped:
                text = f"its {size} ranks have not made the process group of their script: each trains its own model"
                yield Observation("no_group", text=text, since=watch.progress.step)


def _another_checkpoint(context: AgentContext, watch: AttemptWatch, given: str) -> Iterator[Observation]:
    """A later checkpoint than it was given: one that is passed over, perhaps because it was written
    after a NaN."""
    record, connection = watch.record, context.connection
    attempts = read_attempts(connection, record.run_id)
    ledger = checkpoints.of_run(connection, record.run_id)
    if resumptions(attempts, StepTimes(connection, record.run_id), ledger).get(record.number) == "later":
        first = next(row.first_step for row in attempts if row.number == record.number)
        text = (
            f"steps begin at {first}, after {Path(given).name} (step {record.resumed_step}), which was given: the "
            "script found a later one, which gputui had passed over; pass it {checkpoint} in the profile's resume, or "
            "let it read $GPUTUI_CHECKPOINT"
        )
        yield Observation("not_resumed", text=text, since=first)


def missing_metrics(spec: RunSpec, run_dir: Path, attempt: int, began: float) -> str | None:
    """A sentence once the attempt has saved a checkpoint or its first rank printed PRINTED_LINES
    lines; None before. Call it in a job, and only while there is no metrics line."""
    files = [str(in_run(source.path, spec, run_dir)) for source in spec.metrics if source.path is not None]
    unread = [f"no metrics line was read from {' or '.join(files)}"] if files else []
    printed = next((source.kind for source in spec.metrics if source.kind in PRINTED_STREAMS), None)
    if printed is not None:
        unread.append(f"nothing in its {printed} matches the patterns of its profile")
    folder = checkpoint_directory(spec, run_dir)
    if folder is not None and spec.checkpoints is not None:
        try:
            newest = next(iter(list_checkpoints(folder, spec.checkpoints.pattern)), None)
        except OSError:
            newest = None
        if newest is not None and newest.modified_ns / 1e9 >= began:
            return f"it has saved {Path(newest.path).name}, but {' and '.join(unread)}"
    outputs = LAUNCHERS[spec.launcher].log_files(node_folder(run_dir / "attempts" / str(attempt)), spec.nproc)
    # Updates of a progress bar, which end with a carriage return, count too.
    texts = (text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for text in _readable(outputs))
    if any(text.count(b"\n") >= PRINTED_LINES for text in texts):
        return f"it has printed {PRINTED_LINES} lines, but {' and '.join(unread)}"
    return None


def makes_group(spec: RunSpec) -> bool:
    """Whether the run's script makes a process group or wraps a model in one. Call it in a job."""
    scripts = [Path(spec.workdir, word) for word in spec.program if word.endswith(".py")]
    return any(_GROUP.search(text) for text in _readable(scripts[:1]))


def _readable(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        try:
            with open_regular(path) as file:
                yield file.read(_READ_BYTES)
        except OSError:
            continue
