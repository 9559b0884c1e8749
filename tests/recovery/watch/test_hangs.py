"""When a silence is a hang: what history explains, what ranks do, and what is said of both. Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.recovery.tracebacks import Stack, StackFrame, place
from gputui.recovery.watch.silence import (
    Doing,
    GpuActivity,
    ProgressSilence,
    StepPace,
    StepProgress,
    doing,
    judge,
    lagging_rank,
    silence,
)
from gputui.runs.process_readings import ProcessReading
from gputui.store.metrics.watched import WatchedLine
from tests.tables import table

OVERDUE = ProgressSilence("steps", 100.0, 60.0)
W, C, IO, SPIN, STOP, GONE = (Doing.WAITING, Doing.COMPUTING, Doing.IO, Doing.SPINNING, Doing.STOPPED, Doing.GONE)


def line(step: int | None, at: float | None, event: str | None = None) -> WatchedLine:
    return WatchedLine(1, None, step, at, event, {})


def course(*gaps: float, pace: StepPace | None = None) -> StepProgress:
    """An attempt whose steps came with these gaps between them."""
    at, lines = 0.0, [line(0, 0.0)]
    for step, gap in enumerate(gaps, 1):
        at += gap
        lines.append(line(step, at))
    made = StepProgress(pace or StepPace())
    made.add(lines)
    return made


@table("lines, event, explained", [(0, None, 600), (1, None, 300), (10, None, 60), (10, "end", 600)])
def test_without_history_the_start_may_take_longest_and_steps_least(
    lines: int, event: str | None, explained: float
) -> None:
    made = StepProgress(StepPace())
    made.add([line(step, None) for step in range(lines)])
    made.add([line(None, None, event)] if event else [])
    assert silence(made, 0.0, 60).allowed_seconds == explained


def test_a_silence_is_explained_by_the_longest_that_ended_well() -> None:
    slow = course(*[1.0] * 20, 50.0, *[1.0] * 5)
    assert silence(slow, 149.0, 60).is_overdue is False
    assert silence(slow, 151.0, 60).is_overdue is True


def test_lines_that_repeat_a_step_are_no_progress_and_events_are() -> None:
    one = course(1.0, 1.0)
    assert not one.add([line(2, 50.0), line(2, 60.0)])
    assert one.add([line(2, 70.0, "checkpoint")])
    assert one.add([line(3, 71.0)])


def reading(
    pid: int = 1, *, state: str = "S", cpu: float = 0.0, queued: float = 0.0, io: int | None = 0
) -> ProcessReading:
    return ProcessReading(pid, 1, state, cpu, queued, io, 0)


@table("later, what", [
    (reading(), W), (reading(cpu=0.05), W), (reading(cpu=2.0), C), (reading(queued=1.0), C),
    (reading(io=1 << 20), IO), (reading(state="D"), IO), (reading(state="T"), STOP),
    (reading(io=None), Doing.UNKNOWN),
])  # fmt: skip
def test_what_a_rank_does_is_told_by_two_looks(later: ProcessReading, what: Doing) -> None:
    assert doing([reading()], [later], 2.0) is what


def test_a_rank_is_all_its_processes_and_none_is_gone() -> None:
    assert doing([reading(1), reading(2)], [reading(1), reading(2, cpu=2.0)], 2.0) is C
    assert doing([reading(1)], [], 2.0) is GONE


@table("gpu, what", [
    (GpuActivity(100, 0, 0.4), SPIN), (GpuActivity(100, 40, 1.0), C), (GpuActivity(100, 0, 1.0), C),
    (GpuActivity(100, None, 0.4), C), (GpuActivity(100, 0, None), C), (GpuActivity(50, 0, 0.4), C),
    (GpuActivity(0, 0, 0.3), W), (GpuActivity(None, None, None), W),
])  # fmt: skip
def test_a_busy_gpu_computes_unless_it_only_spins(gpu: GpuActivity, what: Doing) -> None:
    assert doing([reading()], [reading()], 2.0, gpu) is what


def test_a_processor_that_polls_for_a_spinning_gpu_waits() -> None:
    assert doing([reading()], [reading(cpu=2.0)], 2.0, GpuActivity(100, 0, 0.4)) is SPIN
    assert doing([reading()], [reading(cpu=2.0)], 2.0, GpuActivity(0, 0, 0.3)) is C


@table("ranks, kind, rank", [
    ({0: W, 1: W}, "hang", None), ({0: SPIN, 1: SPIN, 2: W}, "hang", None), ({0: W, 1: STOP}, "hang", 1),
    ({0: STOP, 1: STOP}, "hang", 0), ({0: W, 1: GONE}, "rank_left_early", 1), ({None: W}, "hang", None),
    ({None: STOP}, "paused", None), ({0: C, 1: W}, "slow", 0), ({0: IO, 1: W}, "slow", 0),
    ({0: C, 1: C}, "slow", None), ({0: W, 1: Doing.UNKNOWN}, "slow", 1),
])  # fmt: skip
def test_what_an_overdue_silence_is(ranks: Mapping[int | None, Doing], kind: str, rank: int | None) -> None:
    verdict = judge(OVERDUE, ranks)
    assert verdict is not None and (verdict.kind, verdict.rank) == (kind, rank)
    assert judge(ProgressSilence("steps", 59.0, 60.0), ranks) is None


EXPLAINED = ProgressSilence("steps", 25.0, 90.0, 20.0)


@table("ranks, is_closed, kind, rank", [
    ({0: W, 1: STOP}, False, "hang", 1), ({0: C, 1: STOP}, False, "hang", 1), ({0: W, 1: W}, True, "hang", None),
    ({0: W, 1: W}, False, None, None), ({0: SPIN, 1: SPIN}, False, "hang", None),
    ({0: SPIN, 1: W}, False, None, None), ({0: SPIN, 1: W}, True, "hang", None),
    ({0: W, 1: GONE}, True, "rank_left_early", 1), ({0: C, 1: W}, True, None, None),
    ({0: IO, 1: W}, True, None, None), ({0: STOP, 1: STOP}, True, None, None), ({None: W}, True, None, None),
    ({0: W, 1: Doing.UNKNOWN}, True, None, None),
])  # fmt: skip
def test_ranks_that_nothing_can_wake_hang_however_long_a_silence_is_explained(
    ranks: Mapping[int | None, Doing], is_closed: bool, kind: str | None, rank: int | None
) -> None:
    verdict = judge(EXPLAINED, ranks, is_closed=is_closed)
    assert (None if verdict is None else (verdict.kind, verdict.rank)) == (None if kind is None else (kind, rank))
    assert judge(ProgressSilence("start", 25.0, 600.0), ranks, is_closed=is_closed) is None
    assert judge(EXPLAINED, ranks, is_closed=is_closed, launcher_stopped=True) is None


def test_who_stops_all_of_a_run_pauses_it() -> None:
    verdict = judge(OVERDUE, {0: STOP, 1: STOP}, launcher_stopped=True)
    assert verdict is not None and verdict.kind == "paused"


def test_one_rank_that_computes_alone_is_believed_for_half_an_hour() -> None:
    kinds = [
        verdict.kind
        for seconds in (1700.0, 1900.0)
        if (verdict := judge(ProgressSilence("steps", seconds, 60.0), {0: C, 1: W})) is not None
    ]
    assert kinds == ["slow", "hang"]
    lately = judge(ProgressSilence("steps", 1e4, 60.0), {0: C, 1: W}, alone_seconds=1700.0)
    assert lately is not None and lately.kind == "slow"
    reading_alone = judge(ProgressSilence("steps", 1e5, 60.0), {0: IO, 1: W})
    assert reading_alone is not None and reading_alone.kind == "slow"


def test_a_program_that_never_wrote_metrics_may_be_meant_to_wait() -> None:
    verdict = judge(ProgressSilence("start", 700.0, 600.0), {None: W}, meets=False)
    assert verdict is not None and verdict.kind == "slow"


def stack(*places: str) -> Stack:
    frames = (place.split(":") for place in places)
    return tuple(StackFrame(file, int(line), function) for file, line, function in frames)


LIBRARY = "/venv/lib/python3.12/site-packages/torch"
BACKWARD = stack(f"{LIBRARY}/autograd/graph.py:979:_engine_run_backward", "a.py:14:main")
REDUCE = stack(f"{LIBRARY}/_ops.py:3:__call__", f"{LIBRARY}/distributed/functional.py:9:wait", "a.py:14:main")
LOADER = stack("/usr/lib/python3.12/queue.py:17:get", f"{LIBRARY}/utils/data/dataloader.py:8:_get_data", "a.py:13:main")
REQUEST = stack("/usr/lib/python3.12/ssl.py:17:read", "/venv/lib/site-packages/requests/api.py:8:get", "a.py:13:main")
OWN_COMMUNICATION = stack("/venv/lib/python3.12/site-packages/mpi4py/run.py:8:barrier", "a.py:13:main")
# Waits in native code show the line of the script.
SLEEP, ITEM, WORK = stack("a.py:15:main"), stack("a.py:16:main"), stack("a.py:17:main")
SOURCE = {15: "time.sleep(600)", 16: "total += loss.item()", 17: "handle.wait()"}


@table(
    "stacks, rank",
    [
        ([BACKWARD, LOADER], 1),
        ([REQUEST, REDUCE, BACKWARD], 0),
        ([ITEM, ITEM, LOADER, ITEM], 2),
        ([BACKWARD, SLEEP], 1),
        ([ITEM, SLEEP], 1),
        ([WORK, BACKWARD], None),
        ([ITEM, REDUCE, REDUCE], None),
        ([OWN_COMMUNICATION, REDUCE], None),
        ([LOADER, LOADER, BACKWARD], None),
        ([BACKWARD, BACKWARD], None),
        ([LOADER], None),
    ],
)
def test_the_rank_that_holds_up_the_others(stacks: list[Stack], rank: int | None) -> None:
    found = lagging_rank(dict(enumerate(stacks)), lambda _, line: SOURCE.get(line, ""))
    assert (found and found[0]) == rank
    assert (found is None) == (len({place(stack) for stack in stacks}) == 1)
