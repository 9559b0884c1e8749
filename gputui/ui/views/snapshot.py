"""The content of the whole screen as one immutable value; the feed builds it, the pages draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.curves.model import ChartData, ChartRequest
from gputui.metrics.progress import Progress
from gputui.runs.scheduler import WaitingRuns
from gputui.store.agent import AgentView
from gputui.store.alerts import AlertView
from gputui.store.attempts import Attempt
from gputui.store.events import EventView
from gputui.store.hardware import GpuEventView, GpuView, Quarantined
from gputui.store.queue import QueuePause
from gputui.store.rollups import GpuHistory, HostHistory
from gputui.store.runs import Run
from gputui.store.series import HostSample

if TYPE_CHECKING:
    # Imported when a page needs them.
    from gputui.profiles.gpu_checks import GpuSituation
    from gputui.recovery.costs import Cost
    from gputui.recovery.run_history import Failure
    from gputui.runs.processes import HostProcess
    from gputui.store.metrics.intake import Intake
    from gputui.store.studies import StudyState
    from gputui.store.timeline import Span, Timeline
    from gputui.studies.results import StudyResults

HISTORY_BUCKETS = 60
"""Buckets of a short history."""

HISTORY_SECONDS = 600.0
"""Length of a short history."""

GPU_SPANS_SECONDS = (600.0, 3600.0, 21_600.0, 86_400.0)
"""Spans of the charts on a GPU's page."""


class RunRow(Struct, frozen=True):
    """A run in the table. ``cost`` is the total cost of its incidents, None without any."""

    run: Run
    progress: Progress
    cost: Cost | None = None

    @property
    def share_done(self) -> float | None:
        """The share of its steps that is done; all, once it succeeded: many count them from 0, or report not each."""
        if self.progress.step is None or not self.progress.total_steps:
            return None
        if self.run.state == "succeeded":
            return 1.0
        return min(1.0, self.progress.step / self.progress.total_steps)


class MachineState(Struct, frozen=True):
    """The state of the whole machine.

    Attributes:
        quarantined: the GPUs in quarantine, by their UUIDs.
        queue_pause: None while the queue is open.
        xids: the number of XIDs within the last day, by the GPU's UUID.
        waiting: the runs in the queue.
        promised: the run that gets a GPU next, by the GPU's UUID.
    """

    quarantined: Mapping[str, Quarantined] = msgspec.field(default_factory=dict)
    queue_pause: QueuePause | None = None
    xids: Mapping[str, int] = msgspec.field(default_factory=dict)
    waiting: WaitingRuns = WaitingRuns()
    promised: Mapping[str, str] = msgspec.field(default_factory=dict)


class GpuPage(NamedTuple):
    """The content of a GPU's page beyond its row.

    Attributes:
        span_seconds: the length of the histories, which have equal buckets.
        history: None if nothing was sampled.
        memory_temperatures: in °C; None where no memory temperature was read.
        events: the driver's reports, newest first.
        leased_since: UTC unix seconds; None while no run has it.
    """

    uuid: str
    span_seconds: float
    history: GpuHistory | None
    memory_temperatures: tuple[float | None, ...]
    events: tuple[GpuEventView, ...]
    leased_since: float | None


class StudyRow(NamedTuple):
    """A study in a list.

    Attributes:
        over: how many of its trials are over.
        running: how many of its trials run.
        queued: how many of its trials wait in the queue.
        planned: how many trials it will have; None if its budget counts something else.
        metric: the metric of the first objective.
        best: the best value so far; None before one, and with several objectives.
        best_number: the number of the trial with the best value; None like ``best``.
    """

    study_id: str
    state: StudyState
    over: int
    running: int
    queued: int
    planned: int | None
    metric: str
    best: float | None
    best_number: int | None


class LogTail(NamedTuple):
    """The end of a log file, as harmless text.

    Attributes:
        labels: all logs that are not empty.
        problem: a sentence if this log cannot be read.
        levels: the level of each line (`gputui.runs.log_lines.Level`).
        first: the number of the first line; lines keep their numbers while the log grows.
        is_whole: whether the first line is that of the file.
        past_note: how complete the log of a past moment is.
        source: the path of the file, which differs for each attempt.
    """

    label: str | None = None
    labels: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    problem: str | None = None
    levels: bytes = b""
    first: int = 0
    is_whole: bool = True
    past_note: str = ""
    source: str = ""


class Checkpoint(NamedTuple):
    """One checkpoint, as harmless text.

    Attributes:
        modified_at: UTC unix seconds.
        is_valid: None if its content was not checked.
        why: what was checked, or what is wrong or cannot be read.
        attempt: the attempt that wrote it; None if unknown.
        refused: why the run will not resume from it.
        is_contested: that is because another run may have written it.
        is_gone: it was there at the past moment shown, and is no more.
    """

    name: str
    step: int | None
    size_bytes: int | None
    modified_at: float | None
    is_valid: bool | None = None
    why: str = ""
    attempt: int | None = None
    refused: str = ""
    is_contested: bool = False
    is_gone: bool = False


class CheckpointList(Struct, frozen=True):
    """The newest checkpoints of a run, newest first.

    Attributes:
        count: how many there are in all.
        is_known: false until the folder was read.
        is_elsewhere: only the run's target can read the folder.
    """

    newest: tuple[Checkpoint, ...] = ()
    count: int = 0
    is_known: bool = False
    is_elsewhere: bool = False

    def at(self, at: float, gone: Sequence[Checkpoint]) -> CheckpointList:
        """The checkpoints of a past moment: those that had been written, and ``gone``, which were there then."""
        written = [file for file in self.newest if file.modified_at is not None and file.modified_at <= at]
        listed = sorted((*written, *gone), key=lambda file: file.modified_at or 0.0, reverse=True)
        return replace(self, newest=tuple(listed), count=self.count - len(self.newest) + len(listed))


class RunPage(Struct, frozen=True):
    """The run whose page is open.

    Attributes:
        charts: the answer to the page's request; None before it.
        rank_count: the number of ranks of its newest attempt; 0 if that is unknown.
        failures: its incidents with the decisions on them and their costs, oldest first.
        checkpoints: None if its specification, which says where they are, cannot be read.
        intake: how many metrics lines were used and rejected; None at a past moment.
        sinks: the names of its live exports.
        data_events: events about its sinks, metrics and checkpoints.
    """

    run: Run
    launched: Mapping[str, object]
    progress: Progress
    metric_names: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    failures: tuple[Failure, ...]
    log: LogTail
    rank_count: int = 0
    charts: ChartData | None = None
    checkpoints: CheckpointList | None = None
    intake: Intake | None = None
    sinks: tuple[str, ...] = ()
    data_events: tuple[EventView, ...] = ()


class Moment(Struct, frozen=True):
    """A requested past moment.

    Attributes:
        at: UTC unix seconds.
        ticks: how many events, incidents or alerts to go on from there; negative is back.
        direction: if nothing was recorded at ``at``, whether to take the nearest moment before (-1) or after it (1),
            or to stay (0).
    """

    at: float
    ticks: int = 0
    direction: int = 0


class Interest(Struct, frozen=True):
    """A request to the feed beyond the overview.

    Attributes:
        run_id: the run whose page is open.
        log_label: the log shown there; None for the most useful one.
        is_log_deep: whether to read far back in the log.
        checkpoint_to_check: the checkpoint whose content to check.
        charts: the charts of the run, or of the compared runs.
        compared: the runs of an open comparison.
        gpu_uuid: the GPU whose page is open.
        gpu_span_seconds: the span of its charts.
        alerts: whether the page of alerts is open.
        processes: whether the page of processes is open.
        studies: whether the page of a study is open.
        study_id: the study shown; None for the newest.
        moment: the past moment shown; None for the present.
    """

    run_id: str | None = None
    log_label: str | None = None
    is_log_deep: bool = False
    checkpoint_to_check: str | None = None
    charts: ChartRequest | None = None
    compared: tuple[str, ...] = ()
    gpu_uuid: str | None = None
    gpu_span_seconds: float = GPU_SPANS_SECONDS[0]
    alerts: bool = False
    processes: bool = False
    studies: bool = False
    study_id: str | None = None
    moment: Moment | None = None


class Past(NamedTuple):
    """The additions of a snapshot of a past moment.

    Attributes:
        request: the moment asked for.
        now: the present, UTC unix seconds.
        timeline: what was recorded when.
        gap: the gap in the recording in which the moment lies; None if something was recorded then.
    """

    request: Moment
    now: float
    timeline: Timeline
    gap: Span | None = None


class Snapshot(Struct, frozen=True):
    """One moment of everything.

    Attributes:
        at: the moment, UTC unix seconds.
        page: the run whose page is open.
        alerts: the active ones, the severest first.
        resolved_alerts: the newest ones; none unless the page of alerts is open.
        compared: the charts of compared runs, by run.
        processes: while their page is open, those of our runs and the visible ones on the GPUs, by PID.
        idle_since: while the page of processes is open, since when (UTC unix seconds) a process has held memory of an
            idle GPU, by the GPU's UUID and the PID.
        studies: the active ones, newest first.
        study_states: the states of all studies, by their ids.
        study_page: the study whose page is open.
        all_studies: all studies, newest first; none unless the page of a study is open.
        problem: a sentence if the database cannot be read; the other values are then the last ones read.
        unsent: a sentence if recipients of messages cannot be reached.
        past: set if ``at`` is not the present.
    """

    at: float
    agent: AgentView | None = None
    gpus: tuple[GpuView, ...] = ()
    gpu_history: Mapping[str, GpuHistory] = msgspec.field(default_factory=dict)
    host: HostSample | None = None
    host_history: HostHistory | None = None
    runs: tuple[RunRow, ...] = ()
    events: tuple[EventView, ...] = ()
    page: RunPage | None = None
    compared: Mapping[str, ChartData] = msgspec.field(default_factory=dict)
    machine: MachineState = msgspec.field(default_factory=MachineState)
    gpu_page: GpuPage | None = None
    processes: Mapping[int, HostProcess] | None = None
    idle_since: Mapping[tuple[str, int], float] = msgspec.field(default_factory=dict)
    alerts: tuple[AlertView, ...] = ()
    resolved_alerts: tuple[AlertView, ...] = ()
    studies: tuple[StudyRow, ...] = ()
    study_states: Mapping[str, StudyState] = msgspec.field(default_factory=dict)
    study_page: StudyResults | None = None
    all_studies: tuple[StudyRow, ...] = ()
    problem: str | None = None
    unsent: str | None = None
    past: Past | None = None

    @property
    def situation(self) -> GpuSituation | None:
        """The GPUs as a launch sees them; None if no agent has read them yet."""
        from gputui.profiles.situation import situation_of

        machine = self.machine
        return situation_of(self.agent, self.gpus, machine.quarantined, self.alerts, machine.waiting)

    def run_of(self, run_id: str | None) -> Run | None:
        """The run with this id; None if it is not in the table."""
        return next((row.run for row in self.runs if row.run.run_id == run_id), None)
