"""The monitor's use of observations: shown once, ended if the policy says so, remembered by the
next agent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.health.gpu_reports import LAST_SECONDS, gpu_use, sightings
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.config import Workspace
from gputui.core.redaction import BY_LOOK
from gputui.recovery.driver_reports import Sighting
from gputui.recovery.evidence import AttemptGpus
from gputui.recovery.policies import POLICIES, Policy
from gputui.recovery.watch.rules import Observation
from gputui.runs.executors.process import ExecutorProcess
from gputui.store.metrics.roles import set_roles
from gputui.store.series import GpuSample
from tests.agent.health.watched_home import GPU, WatchedHome
from tests.conftest import wait_until
from tests.homes import GIB, SPEC, add_gpu, add_line, add_source
from tests.tables import table

STANDARD = POLICIES["standard"]
OFF = POLICIES["off"]
BAD = [{"step": step, "loss": "NaN"} for step in range(9)]
JUMP = [{"step": step, "loss": 1.0 + step % 3 / 100} for step in range(99)] + [
    {"step": step, "loss": 9.0} for step in range(99, 140)
]
LONE = [{"step": step, "rank": 3} for step in range(30)]


class AskedExecutor:
    """An executor without processes, which notes whether each request to end was to end at once."""

    def __init__(self) -> None:
        self.end_requests: list[bool] = []

    kind = property(lambda self: self)

    def processes(self, *_: object) -> list[object]:
        return []

    def ask_to_end(self, *, at_once: bool) -> None:
        self.end_requests.append(at_once)


class MonitoredHome(WatchedHome):
    """A home with a living attempt, which the monitor looks at every two seconds."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.train()
        add_source(self.connection, "vit-1")
        set_roles(self.connection, "vit-1", "loss", best=None, mode=None)
        self.executor = AskedExecutor()
        self.begin(STANDARD)

    @property
    def end_requests(self) -> list[bool]:
        return self.executor.end_requests

    def begin(self, policy: Policy) -> None:
        """An agent begins to watch."""
        self.start()
        resolved = ResolvedRun(SPEC, policy, BY_LOOK)
        self.live = LiveAttempt(self.living[0].record, cast("ExecutorProcess", self.executor), resolved=resolved)
        self.monitor = HealthMonitor(self.services, ErrorBarrier(self.services))
        wait_until(lambda: bool(self.look() or self.live.watched), what="the history")

    def look(self) -> None:
        self.pass_time(2.0)
        self.monitor.poll([self.live])

    def lines(self, *lines: dict[str, Any]) -> None:
        for line in lines:
            add_line(self.connection, line.get("step"), self.now, line, rank=line.get("rank"))
        self.connection.execute("UPDATE metric_sources SET byte_offset = byte_offset + ?", (len(lines),))

    def observed(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT kind, step, ends FROM observations ORDER BY observation_id")


@pytest.fixture
def home(workspace: Workspace) -> Iterator[MonitoredHome]:
    with closing(MonitoredHome(workspace)) as home:
        yield home


def replace_attempt(live: LiveAttempt, number: int) -> LiveAttempt:
    """A later attempt of the same run, not watched yet."""
    return LiveAttempt(replace(live.record, number=number), live.executor, resolved=live.resolved)


def gpu_sample(gigabytes: int | None) -> GpuSample:
    used = None if gigabytes is None else gigabytes * GIB
    return GpuSample(GPU, memory_used_bytes=used, utilization_percent=50.0)


@pytest.mark.parametrize(("lines", "policy", "observed", "requested"), [
    (BAD, STANDARD, [("nan_loss", 0, 1)], [True]), (BAD, OFF, [("nan_loss", 0, 0)], []),
    (JUMP, STANDARD, [("loss_spike", 99, 0)], []),
    (JUMP, replace(STANDARD, ends_on=frozenset({"loss_spike"})), [("loss_spike", 99, 1)], [True]),
    (LONE, STANDARD, [("no_first_rank", None, 0)], []),
])  # fmt: skip
def test_a_finding_is_shown_once_or_ends_the_attempt(
    home: MonitoredHome, lines: list[dict[str, Any]], policy: Policy, observed: list[object], requested: list[bool]
) -> None:
    home.begin(policy)
    home.lines(*lines)
    for _ in range(3):
        home.look()
    home.lines(*lines)
    home.look()
    assert (home.observed(), home.end_requests) == (observed, requested)
    (severity, key, text), *others = home.rows("SELECT severity, key, message FROM events WHERE kind = 'observation'")
    assert (severity, key, others) == ("error" if requested else "warning", cast("Any", observed[0])[0], [])
    assert text.endswith("; ending this attempt") is bool(requested)
    home.begin(policy)
    home.look()
    assert home.observed() == observed, "the next agent acts, and tells nothing"
    assert home.end_requests == requested * 2, "the next agent acts, and tells nothing"


def test_a_finding_is_kept_where_another_metric_becomes_the_loss(home: MonitoredHome) -> None:
    watched = home.live.watched
    assert watched is not None
    watched.pending.append(Observation("straggler", 2.0, text="rank 3 is slow", rank=3))
    set_roles(home.connection, "vit-1", "val/loss", best=None, mode=None)
    home.look()
    assert home.observed() == [("straggler", None, 0)]


def test_an_attempt_is_not_ended_for_what_was_asked_about_the_one_before(home: MonitoredHome) -> None:
    home.lines(*BAD)
    first = home.live = replace_attempt(home.live, 1)
    home.look()
    wait_until(lambda: not home.services.jobs.is_busy, what="the history of attempt 1")
    home.live = replace_attempt(first, 2)
    wait_until(lambda: bool(home.look() or home.live.watched), what="the history of attempt 2")
    home.look()
    watched = home.live.watched
    assert watched is not None
    assert watched.watch.record.number == 2
    assert (home.end_requests, home.observed()) == ([], [])


@table("events, said", [
    ([], 0), ([("lost", None)], 1), ([("xid", 79)], 1), ([("xid", 31)], 0), ([("lost", None), ("returned", None)], 0),
])  # fmt: skip
def test_an_attempt_that_waits_for_a_lost_gpu_is_ended(
    home: MonitoredHome, events: list[tuple[str, int | None]], said: int
) -> None:
    home.connection.execute("DELETE FROM gpu_events")
    home.connection.execute("DELETE FROM events")
    home.end_requests.clear()
    home.begin(STANDARD)
    home.lines({"step": int(home.uptime)})
    home.look()
    rows = [(home.now + place, GPU, *event) for place, event in enumerate(events)]
    home.connection.executemany("INSERT INTO gpu_events (at, uuid, event, code) VALUES (?, ?, ?, ?)", rows)
    for looks in range(18):
        home.look()
        assert looks >= 9 or not home.end_requests, "not yet for 20 s"
    messages = home.rows("SELECT message FROM events WHERE kind = 'gpu_unresponsive'")
    assert (len(messages), home.end_requests) == (said, [True] * said)


def test_events_and_counters_of_gpus_tell_only_what_came_meanwhile(connection: sqlite3.Connection) -> None:
    a = add_gpu(connection, "GPU-a")
    b = add_gpu(connection, "GPU-b")
    slow = [(10, a, 7, False), (20, a, 7, False), (30, a, None, None), (40, a, 9, True), (50, a, 9, True),
            (10, b, 3, True), (20, b, 0, True)]  # fmt: skip
    connection.executemany(
        "INSERT INTO gpu_slow_samples (at, gpu_id, ecc_uncorrected, row_remap_failed) VALUES (?, ?, ?, ?)", slow
    )
    rows = [(5, "GPU-a", "xid", 31), (15, "GPU-a", "xid", 79), (16, "GPU-b", "lost", None), (17, "GPU-c", "xid", 79)]
    connection.executemany("INSERT INTO gpu_events (at, uuid, event, code) VALUES (?, ?, ?, ?)", rows)
    events = [Sighting(15, "GPU-a", "xid", 79), Sighting(16, "GPU-b", "lost")]
    assert sightings(connection, ["GPU-a", "GPU-b"], 10, 20) == events
    assert sightings(connection, ["GPU-a", "GPU-b"], 10, 100) == [
        *events, Sighting(40, "GPU-a", "ecc", 2), Sighting(40, "GPU-a", "remap"),
    ]  # fmt: skip
    assert sightings(connection, ["GPU-a"], 45, 100) == []
    # The first reading of the interval is compared with the last one before it.
    first = [Sighting(40, "GPU-a", "ecc", 2), Sighting(40, "GPU-a", "remap")]
    assert sightings(connection, ["GPU-a"], 35, 100) == first
    assert sightings(connection, ["GPU-a"], 38, 100) == []


def test_memory_of_the_last_seconds_counts_even_if_it_is_free_again(home: MonitoredHome) -> None:
    attempt = home.living[0].record
    assert gpu_use(home.connection, attempt, home.now) == AttemptGpus(1, None)
    home.go_on(3, gpu_sample(None))
    home.recorder.flush()
    assert gpu_use(home.connection, attempt, home.now) == AttemptGpus(1, None)
    home.go_on(3, gpu_sample(76))
    home.go_on(2, gpu_sample(1))
    home.recorder.flush()
    assert gpu_use(home.connection, attempt, home.now) == AttemptGpus(1, 95.0)
    home.go_on(LAST_SECONDS, gpu_sample(40))
    home.recorder.flush()
    assert gpu_use(home.connection, attempt, home.now) == AttemptGpus(1, 50.0)
