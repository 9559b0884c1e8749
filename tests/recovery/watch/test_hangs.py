"""Silences and hangs: the run's history, the ranks' activity, and the verdict. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from gputui.recovery.stacks import Stack, StackFrame, lagging_rank, location_of
from gputui.recovery.watch.activity import ProcessSnapshot
from gputui.recovery.watch.attempt import AttemptWatch
from gputui.recovery.watch.hangs import Doing, GpuActivity, RankActivity, doing, judge
from gputui.recovery.watch.silence import ProgressSilence, StepPace, StepProgress, silence
from gputui.runs.process_readings import ProcessReading
from gputui.store.attempts import Attempt
from gputui.store.metrics.watched import WatchedLine
from gputui.store.series import GpuSample
from tests.tables import table

W = Doing.WAITING
C = Doing.COMPUTING
IO = Doing.IO
SPIN = Doing.SPINNING
STOP = Doing.STOPPED
GONE = Doing.GONE
UNKNOWN = Doing.UNKNOWN
Ranks = Mapping[int | None, Doing]

CHILD = ProcessReading(
    2, 1, "S", cpu_seconds=0.02, queued_seconds=0.0, io_bytes=0, private_bytes=0, is_program=True, age_seconds=20.0
)

OVERDUE = ProgressSilence("steps", 100.0, 60.0)
EXPLAINED = ProgressSilence("steps", 25.0, 90.0, 20.0)
CLOSED = {"is_closed": True}
WAIT, TOO_LONG = (ProgressSilence("steps", seconds, 60.0, long_seconds=600.0) for seconds in (100.0, 700.0))
LATE = ProgressSilence("steps", 1700.0, 60.0)
LATER = ProgressSilence("steps", 1900.0, 60.0)

LIBRARY = "/venv/lib/python3.12/site-packages/torch"

SOURCE = {15: "time.sleep(600)", 16: "total += loss.item()", 17: "handle.wait()"}


def line(step: int | None, at: float | None, event: str | None = None, *, announces: bool = False) -> WatchedLine:
    return WatchedLine(1, rank=None, step=step, at=at, event=event, values={}, announces=announces)


def history(*gaps: float) -> StepProgress:
    """An attempt whose steps came with these gaps between them."""
    progress = StepProgress(StepPace())
    progress.add(line(step, sum(gaps[:step])) for step in range(len(gaps) + 1))
    return progress


def reading(
    pid: int = 1, *, state: str = "S", cpu: float = 0.0, queued: float = 0.0, io: int | None = 0
) -> ProcessReading:
    return ProcessReading(pid, 1, state, cpu_seconds=cpu, queued_seconds=queued, io_bytes=io, private_bytes=0)


BUSY = reading(cpu=2.0)


def certain_after(looks: Iterator[tuple[float, ProcessSnapshot]]) -> float | None:
    """The time of the look after which a long silence of one process is certainly a hang."""
    watch = AttemptWatch(
        Attempt("r", 1, "running", params={}, gpus=(), launch={}, created_at=0.0),
        StepProgress(StepPace()),
        0.0,
        had_lines=True,
    )
    for at, look in looks:
        quiet = ProgressSilence("steps", 100.0 + at, 60.0, long_seconds=120.0)
        cause, is_certain = watch.assess(look, {}, quiet, 60.0)
        if is_certain and cause is not None and cause.kind == "hang":
            return at
    return None


def stack(*places: str) -> Stack:
    frames = (place.split(":") for place in places)
    return tuple(StackFrame(file, int(line), function) for file, line, function in frames)


BACKWARD = stack(f"{LIBRARY}/autograd/graph.py:979:_engine_run_backward", "a.py:14:main")
REDUCE = stack(f"{LIBRARY}/_ops.py:3:__call__", f"{LIBRARY}/distributed/functional.py:9:wait", "a.py:14:main")
LOADER = stack("/usr/lib/python3.12/queue.py:17:get", f"{LIBRARY}/utils/data/dataloader.py:8:_get_data", "a.py:13:main")
REQUEST = stack("/usr/lib/python3.12/ssl.py:17:read", "/venv/lib/site-packages/requests/api.py:8:get", "a.py:13:main")
OWN_COMMUNICATION = stack("/venv/lib/python3.12/site-packages/mpi4py/run.py:8:barrier", "a.py:13:main")
# Waits in native code show the line of the script.
SLEEP = stack("a.py:15:main")
ITEM = stack("a.py:16:main")
WORK = stack("a.py:17:main")


@table("lines, event, explained", [(0, None, 600), (1, None, 300), (10, None, 60), (10, "end", 600)])
def test_without_history_the_start_may_take_longest_and_steps_least(
    lines: int, event: str | None, explained: float
) -> None:
    progress = StepProgress(StepPace())
    progress.add([line(step, None) for step in range(lines)] + [line(step=None, at=None, event=event)] * bool(event))
    assert silence(progress, 0.0, 60).allowed_seconds == explained


@table("seconds, overdue", [(149.0, False), (151.0, True)])
def test_a_silence_is_explained_by_the_longest_that_ended_well(seconds: float, overdue: bool) -> None:
    assert silence(history(*[1.0] * 20, 50.0, *[1.0] * 5), seconds, 60).is_overdue is overdue


def test_lines_that_repeat_a_step_are_no_progress_and_events_are() -> None:
    progress = history(1.0, 1.0)
    assert not progress.add([line(2, 50.0), line(2, 60.0)])
    assert progress.add([line(2, 70.0, "checkpoint")])
    assert progress.add([line(3, 71.0)])


def test_a_wait_that_an_event_announced_may_take_long_until_the_next_line() -> None:
    announced = history(*[1.0] * 20)
    announced.add([line(20, 21.0, "eval_begin", announces=True)])
    assert silence(announced, 0.0, 60).allowed_seconds == 600
    # An event with numbers reports what is over, and a step ends every wait.
    for after in (line(20, 22.0, "checkpoint"), line(21, 22.0)):
        announced.add([after])
        assert silence(announced, 0.0, 60).allowed_seconds == 60


# --- what ranks do ----------------------------------------------------------------------------------------------------


@table(
    "later, gpu, what",
    [
        ([reading()], None, W),
        ([reading(cpu=0.05)], None, W),
        ([BUSY], None, C),
        ([reading(queued=1.0)], None, C),
        ([reading(io=1 << 20)], None, IO),
        ([reading(state="D")], None, IO),
        ([reading(state="T")], None, STOP),
        ([reading(io=None)], None, UNKNOWN),
        ([reading(), reading(2, cpu=2.0)], None, C),
        ([], None, GONE),
        # A busy GPU computes unless it only spins, and a processor that polls for it waits.
        ([reading()], GpuActivity(100, 0, 0.4), SPIN),
        ([reading()], GpuActivity(100, 40, 1.0), C),
        ([reading()], GpuActivity(100, 0, 1.0), C),
        ([reading()], GpuActivity(100, memory_utilization_percent=None, power_share=0.4), C),
        ([reading()], GpuActivity(100, 0, power_share=None), C),
        ([reading()], GpuActivity(50, 0, 0.4), C),
        ([reading()], GpuActivity(0, 0, 0.3), W),
        ([reading()], GpuActivity(utilization_percent=None, memory_utilization_percent=None, power_share=None), W),
        ([BUSY], GpuActivity(100, 0, 0.4), SPIN),
        ([BUSY], GpuActivity(0, 0, 0.3), C),
    ],
)
def test_what_a_rank_does_is_told_by_two_looks(
    later: list[ProcessReading], gpu: GpuActivity | None, what: Doing
) -> None:
    assert doing([reading(), reading(2)], later, 2.0, gpu) is what


@table("child, silent_seconds, what", [
    (CHILD, 30.0, C), (CHILD, 10.0, W), (replace(CHILD, is_program=False), 30.0, C),
    (replace(CHILD, cpu_seconds=0.0), 30.0, W),
])  # fmt: skip
def test_a_process_that_was_started_in_the_silence_need_not_be_fast(
    child: ProcessReading, silent_seconds: float, what: Doing
) -> None:
    before = replace(child, cpu_seconds=0.0)
    assert doing([reading(), before], [reading(), child], 2.0, gpu=None, silent_seconds=silent_seconds) is what


@table("later, is_only, what", [(0.08, True, C), (0.02, True, W), (None, True, W), (0.08, False, W)])
def test_the_main_thread_of_an_only_rank_may_work_a_little(later: float | None, is_only: bool, what: Doing) -> None:
    before = replace(reading(), main_seconds=0.0)
    after = replace(reading(cpu=0.08), main_seconds=later)
    assert doing([before], [after], 2.0, is_only=is_only) is what


# --- verdicts ---------------------------------------------------------------------------------------------------------


@table("quiet, ranks, more, kind, rank", [
    (OVERDUE, {0: W, 1: W}, {}, "hang", None), (OVERDUE, {0: SPIN, 1: SPIN, 2: W}, {}, "hang", None),
    (OVERDUE, {0: W, 1: STOP}, {}, "hang", 1), (OVERDUE, {0: STOP, 1: STOP}, {}, "hang", 0),
    (OVERDUE, {0: W, 1: GONE}, {}, "rank_left_early", 1), (OVERDUE, {None: W}, {}, "hang", None),
    (OVERDUE, {None: STOP}, {}, "paused", None), (OVERDUE, {0: C, 1: W}, {}, "slow", 0),
    (OVERDUE, {0: IO, 1: W}, {}, "slow", 0), (OVERDUE, {0: C, 1: C}, {}, "slow", None),
    (OVERDUE, {0: W, 1: UNKNOWN}, {}, "slow", 1), (ProgressSilence("steps", 59.0, 60.0), {0: W, 1: W}, {}, None, None),
    # Somebody who stops the launcher and all ranks pauses the run.
    (OVERDUE, {0: STOP, 1: STOP}, {"launcher_stopped": True}, "paused", None),
    # A program that never wrote metrics may be meant to wait.
    (ProgressSilence("start", 700.0, 600.0), {None: W}, {"meets": False}, "slow", None),
    # A rank that computes alone may do so for half an hour, one that reads for as long as it likes.
    (LATE, {0: C, 1: W}, {}, "slow", 0), (LATER, {0: C, 1: W}, {}, "hang", 0), (LATER, {0: IO, 1: W}, {}, "slow", 0),
    (LATER, {0: C, 1: W}, {"alone_seconds": 1700.0}, "slow", 0),
    # Ranks that nothing can wake hang, although the silence itself is explained.
    (EXPLAINED, {0: W, 1: STOP}, {}, "hang", 1), (EXPLAINED, {0: C, 1: STOP}, {}, "hang", 1),
    (EXPLAINED, {0: W, 1: W}, CLOSED, "hang", None), (EXPLAINED, {0: W, 1: W}, {}, None, None),
    (EXPLAINED, {0: SPIN, 1: SPIN}, {}, "hang", None), (EXPLAINED, {0: SPIN, 1: W}, {}, None, None),
    (EXPLAINED, {0: SPIN, 1: W}, CLOSED, "hang", None), (EXPLAINED, {0: W, 1: GONE}, CLOSED, "rank_left_early", 1),
    (EXPLAINED, {0: C, 1: W}, CLOSED, None, None), (EXPLAINED, {0: IO, 1: W}, CLOSED, None, None),
    (EXPLAINED, {0: STOP, 1: STOP}, CLOSED, None, None), (EXPLAINED, {None: W}, CLOSED, None, None),
    (EXPLAINED, {0: W, 1: UNKNOWN}, CLOSED, None, None),
    (EXPLAINED, {0: W, 1: STOP}, {"launcher_stopped": True}, None, None),
    # An earlier attempt was ended for the same, perhaps wrongly: more patience.
    (EXPLAINED, {0: W, 1: W}, {**CLOSED, "is_patient": True}, None, None),
    (EXPLAINED, {0: W, 1: STOP}, {"is_patient": True}, "hang", 1),
    (ProgressSilence("start", 25.0, 600.0), {0: W, 1: STOP}, CLOSED, None, None),
    # A rank may wait long for another program; one that exchanges data with it does not hang.
    (WAIT, {0: W, 1: W}, {}, "slow", None), (WAIT, {0: W, 1: W}, CLOSED, "hang", None),
    (WAIT, {None: W}, {}, "slow", None), (TOO_LONG, {None: W}, {}, "hang", None),
    (WAIT, {0: W, 1: STOP}, {}, "hang", 1),
    (WAIT, {None: W}, {**CLOSED, "has_program": True}, "slow", None),
    (TOO_LONG, {None: W}, {**CLOSED, "has_program": True}, "hang", None),
    (TOO_LONG, {None: W}, {"exchanges": True}, "slow", None),
])  # fmt: skip
def test_the_verdict_on_a_silence(
    quiet: ProgressSilence, ranks: Ranks, more: dict[str, Any], kind: str | None, rank: int | None
) -> None:
    cause = judge(quiet, RankActivity(ranks, **more))
    expected = None if kind is None else (kind, rank)
    assert (None if cause is None else (cause.kind, cause.rank)) == expected


@table("quiet, worked, certain_at", [
    (ProgressSilence("steps", 100.0, 60.0), False, 12.0), (ProgressSilence("steps", 100.0, 60.0), True, 26.0),
    (ProgressSilence("steps", 100.0, 200.0, 20.0), False, 22.0),
])  # fmt: skip
def test_a_hang_is_certain_after_some_looks(quiet: ProgressSilence, worked: bool, certain_at: float) -> None:
    """At a look every two seconds; the first has nothing to be compared with."""
    record = Attempt("r", 1, "running", params={}, gpus=("GPU-0", "GPU-1"), launch={}, created_at=0.0)
    watch = AttemptWatch(record, StepProgress(StepPace()), 0.0)
    watch.activity.has_worked = worked
    usual = {uuid: GpuSample(uuid, power_watts=500.0) for uuid in record.gpus}
    watch.activity.note_power(usual)
    spins = {"utilization_percent": 100.0, "memory_utilization_percent": 0.0, "power_watts": 200.0}
    samples = {uuid: GpuSample(uuid, **spins) for uuid in record.gpus}
    for at in range(0, 60, 2):
        look = ProcessSnapshot(float(at), {0: [reading(1)], 1: [reading(2)]}, [], 2)
        cause, is_certain = watch.assess(look, samples, quiet, 60.0)
        if is_certain:
            break
    assert at == certain_at
    assert cause is not None
    assert cause.kind == "hang"


# --- stacks -----------------------------------------------------------------------------------------------------------


@table("bytes_per_second, certain_at", [(0, 46.0), (200, 46.0), (4096, None), (5_000_000, None)])
def test_data_on_a_connection_to_another_program_is_life(bytes_per_second: int, certain_at: float | None) -> None:
    """A silence of 100 s, which may take 120 s with an open connection; then as long as data flow."""
    looks = (
        (
            float(at),
            ProcessSnapshot(
                at,
                {None: [reading()]},
                [],
                size=1,
                is_closed=False,
                outside_bytes={7: 1_000_000 + bytes_per_second * at},
            ),
        )
        for at in range(0, 300, 2)
    )
    assert certain_after(looks) == certain_at


@table("age, kind", [(20.0, "slow"), (90.0, "hang")])
def test_what_was_there_before_the_first_line_is_not_waited_for(age: float, kind: str) -> None:
    """The silence began 100 s ago, a few seconds after the first line."""
    watch = AttemptWatch(
        Attempt("r", 1, "running", params={}, gpus=(), launch={}, created_at=0.0),
        StepProgress(StepPace()),
        0.0,
        had_lines=True,
    )
    watch.first_line_at = 0.0
    child = replace(CHILD, age_seconds=age)
    quiet = ProgressSilence("steps", 100.0, 60.0, long_seconds=600.0)
    for at in (40.0, 42.0):
        look = ProcessSnapshot(at, {None: [reading(), child]}, [], 1, is_closed=True)
        cause, _ = watch.assess(look, {}, quiet, 60.0)
    assert cause is not None
    assert cause.kind == kind


def test_a_heartbeat_is_no_life() -> None:
    """3 kB each 15 s, as trackers send."""
    looks = (
        (
            float(at),
            ProcessSnapshot(at, {None: [reading()]}, [], size=1, is_closed=False, outside_bytes={7: 3000 * (at // 15)}),
        )
        for at in range(0, 300, 2)
    )
    assert certain_after(looks) is not None


def test_what_is_printed_begins_the_silence_anew() -> None:
    watch = AttemptWatch(
        Attempt("r", 1, "running", params={}, gpus=(), launch={}, created_at=0.0), StepProgress(StepPace()), 0.0
    )
    for at, output in [(70.0, "a"), (72.0, "a"), (74.0, "b"), (76.0, "b")]:
        watch.note_output(output, at)
    assert watch.progress_at == 74.0


@table("stacks, rank", [
    ([BACKWARD, LOADER], 1), ([REQUEST, REDUCE, BACKWARD], 0), ([ITEM, ITEM, LOADER, ITEM], 2), ([BACKWARD, SLEEP], 1),
    ([ITEM, SLEEP], 1), ([WORK, BACKWARD], None), ([ITEM, REDUCE, REDUCE], None), ([OWN_COMMUNICATION, REDUCE], None),
    ([LOADER, LOADER, BACKWARD], None), ([BACKWARD, BACKWARD], None), ([LOADER], None),
])  # fmt: skip
def test_the_rank_that_holds_up_the_others(stacks: list[Stack], rank: int | None) -> None:
    lagging = lagging_rank(dict(enumerate(stacks)), lambda _, line: SOURCE.get(line, ""))
    assert (lagging and lagging[0]) == rank
    assert (lagging is None) == (len({location_of(stack) for stack in stacks}) == 1)
