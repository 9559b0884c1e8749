"""The monitor's use of observations: shown once, ended if the policy says so, remembered by the
next agent."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.health.gpu_reports import LAST_SECONDS, gpu_use, sightings
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.redaction import BY_LOOK
from gputui.recovery.driver_reports import Sighting
from gputui.recovery.evidence import AttemptGpus
from gputui.recovery.policies import POLICIES, Policy
from gputui.recovery.watch.rules import Observation
from gputui.runs.executors.process import ExecutorProcess
from gputui.store.metrics.roles import set_roles
from gputui.store.series import GpuSample
from tests.agent.health.bench import Bench, train
from tests.conftest import wait_until
from tests.homes import GIB, SPEC
from tests.tables import table

STANDARD, OFF = POLICIES["standard"], POLICIES["off"]
BAD = [{"step": step, "loss": "NaN"} for step in range(9)]
JUMP = [{"step": step, "loss": 1.0 + step % 3 / 100} for step in range(99)] + [
    {"step": step, "loss": 9.0} for step in range(99, 140)
]
LONE = [{"step": step, "rank": 3} for step in range(30)]


class Machine(Bench):
    """A living attempt on one GPU, whose executor is this."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        train(self)
        source = "INSERT INTO metric_sources (source_id, run_id, path, format) VALUES (1, 'vit-1', 'p', 'jsonl')"
        self.connection.execute(source)
        set_roles(self.connection, "vit-1", "loss", None, None)
        self.asked: list[bool] = []
        self.begin(STANDARD)

    kind = property(lambda self: self)

    def processes(self, *_: object) -> list[object]:
        return []

    def ask_to_end(self, *, at_once: bool) -> None:
        self.asked.append(at_once)

    def begin(self, policy: Policy) -> None:
        """An agent begins to watch."""
        self.start()
        resolved = ResolvedRun(SPEC, policy, BY_LOOK)
        self.live = LiveAttempt(self.living[0].record, cast("ExecutorProcess", self), resolved=resolved)
        self.monitor = HealthMonitor(self.context, ErrorBarrier(self.context))
        wait_until(lambda: bool(self.look() or self.live.watched), what="the history")

    def look(self) -> None:
        self.now += 2.0
        self.monitor.turn([self.live])

    def lines(self, *lines: dict[str, Any]) -> None:
        (offset,) = self.connection.execute("SELECT byte_offset FROM metric_sources").fetchone()
        for place, line in enumerate(lines, offset):
            values = (place, line.get("rank"), line.get("step"), self.wall(), json.dumps(line))
            self.connection.execute("INSERT INTO metrics VALUES (1, 0, ?, 1, ?, ?, ?, ?)", values)
        self.connection.execute("UPDATE metric_sources SET byte_offset = ?", (offset + len(lines),))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def observed(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT kind, step, ends FROM observations ORDER BY observation_id")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(("lines", "policy", "observed", "asked"), [
    (BAD, STANDARD, [("nan_loss", 0, 1)], [True]), (BAD, OFF, [("nan_loss", 0, 0)], []),
    (JUMP, STANDARD, [("loss_spike", 99, 0)], []),
    (JUMP, replace(STANDARD, ends_on=frozenset({"loss_spike"})), [("loss_spike", 99, 1)], [True]),
    (LONE, STANDARD, [("no_first_rank", None, 0)], []),
])  # fmt: skip
def test_a_finding_is_shown_once_or_ends_the_attempt(
    machine: Machine, lines: list[dict[str, Any]], policy: Policy, observed: list[object], asked: list[bool]
) -> None:
    machine.begin(policy)
    machine.lines(*lines)
    for _ in range(3):
        machine.look()
    machine.lines(*lines)
    machine.look()
    assert (machine.observed(), machine.asked) == (observed, asked)
    (severity, key, text), *others = machine.rows(
        "SELECT severity, key, message FROM events WHERE kind = 'observation'"
    )
    assert (severity, key, others) == ("error" if asked else "warning", cast("Any", observed[0])[0], [])
    assert text.endswith("; ending this attempt") is bool(asked)
    machine.begin(policy)
    machine.look()
    assert machine.observed() == observed and machine.asked == asked * 2, "the next agent acts on it, and tells nothing"


def test_a_finding_is_kept_where_another_metric_becomes_the_loss(machine: Machine) -> None:
    watched = machine.live.watched
    assert watched is not None
    watched.pending.append(Observation("straggler", 2.0, text="rank 3 is slow", rank=3))
    set_roles(machine.connection, "vit-1", "val/loss", None, None)
    machine.look()
    assert machine.observed() == [("straggler", None, 0)]


def test_an_attempt_is_not_ended_for_what_was_asked_about_the_one_before(machine: Machine) -> None:
    machine.lines(*BAD)
    first = machine.live = replace_attempt(machine.live, 1)
    machine.look()
    wait_until(lambda: not machine.context.jobs.is_busy, what="the history of attempt 1")
    machine.live = replace_attempt(first, 2)
    wait_until(lambda: bool(machine.look() or machine.live.watched), what="the history of attempt 2")
    machine.look()
    watched = machine.live.watched
    assert watched is not None and watched.watch.record.number == 2
    assert (machine.asked, machine.observed()) == ([], [])


def replace_attempt(live: LiveAttempt, number: int) -> LiveAttempt:
    """A later attempt of the same run, not watched yet."""
    return LiveAttempt(replace(live.record, number=number), live.executor, resolved=live.resolved)


@table("events, said", [
    ([], 0), ([("lost", None)], 1), ([("xid", 79)], 1), ([("xid", 31)], 0), ([("lost", None), ("returned", None)], 0),
])  # fmt: skip
def test_an_attempt_that_waits_for_a_lost_gpu_is_ended(
    machine: Machine, events: list[tuple[str, int | None]], said: int
) -> None:
    machine.connection.execute("DELETE FROM gpu_events")
    machine.connection.execute("DELETE FROM events")
    machine.asked.clear()
    machine.begin(STANDARD)
    machine.lines({"step": int(machine.now)})
    machine.look()
    rows = [(machine.wall() + place, "GPU-a", *event) for place, event in enumerate(events)]
    machine.connection.executemany("INSERT INTO gpu_events (at, uuid, event, code) VALUES (?, ?, ?, ?)", rows)
    for looks in range(18):
        machine.look()
        assert looks >= 9 or not machine.asked, "not yet for 20 s"
    told = machine.rows("SELECT message FROM events WHERE kind = 'gpu_unresponsive'")
    assert (len(told), machine.asked) == (said, [True] * said)


def test_events_and_counters_of_gpus_tell_only_what_came_meanwhile(connection: sqlite3.Connection) -> None:
    for number, uuid in enumerate(("GPU-a", "GPU-b"), 1):
        connection.execute(
            "INSERT INTO gpus (gpu_id, uuid, position, name, first_seen_at, last_seen_at) VALUES (?, ?, ?, 'x', 0, 0)",
            (number, uuid, number),
        )
    slow = [(10, 1, 7, False), (20, 1, 7, False), (30, 1, None, None), (40, 1, 9, True), (50, 1, 9, True),
            (10, 2, 3, True), (20, 2, 0, True)]  # fmt: skip
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
    # The last reading before the begin is what the first one after it is compared with.
    first = [Sighting(40, "GPU-a", "ecc", 2), Sighting(40, "GPU-a", "remap")]
    assert sightings(connection, ["GPU-a"], 35, 100) == first
    assert sightings(connection, ["GPU-a"], 38, 100) == []


def gpu_sample(gigabytes: int | None) -> GpuSample:
    used = None if gigabytes is None else gigabytes * GIB
    return GpuSample("GPU-a", memory_used_bytes=used, utilization_percent=50.0)


def test_memory_of_the_last_seconds_counts_even_if_it_is_free_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    train(bench)
    attempt = bench.living[0].record
    assert gpu_use(bench.connection, attempt, bench.wall()) == AttemptGpus(1, None)
    bench.pass_time(3, gpu_sample(None))
    bench.recorder.flush()
    assert gpu_use(bench.connection, attempt, bench.wall()) == AttemptGpus(1, None)
    bench.pass_time(3, gpu_sample(76))
    bench.pass_time(2, gpu_sample(1))
    bench.recorder.flush()
    assert gpu_use(bench.connection, attempt, bench.wall()) == AttemptGpus(1, 95.0)
    bench.pass_time(LAST_SECONDS, gpu_sample(40))
    bench.recorder.flush()
    assert gpu_use(bench.connection, attempt, bench.wall()) == AttemptGpus(1, 50.0)
