"""The queries and the JSON shapes, asked of a database filled by hand."""

from __future__ import annotations

import itertools
import json
import sqlite3

import pytest

from gputui.core.units import iso
from gputui.recovery.checkpoints.resumable import candidates, spans_of
from gputui.store import checkpoints, json_shapes
from gputui.store.agent import read_agent
from gputui.store.attempts import read_attempts
from gputui.store.checkpoints import CheckpointRow
from gputui.store.database import data_version
from gputui.store.events import EventKind, NewEvent, Severity, add_event, read_events, read_news
from gputui.store.hardware import LOST_SHOWN_SECONDS, gpu_history, host_history, read_gpus, read_host
from gputui.store.run_history import read_decisions, read_incidents, read_transitions
from gputui.store.runs import RunLookupError, find_run, read_runs, runs_mark
from gputui.store.series import GpuFacts, GpuSlowSample
from gputui.store.studies import StudyLookupError, find_study
from tests.homes import GIB, NOW, Home, uuid
from tests.ledgers import ledger_row
from tests.stories import overnight, search
from tests.texts import mentions


def test_an_empty_store_answers_with_nothing(reader: sqlite3.Connection) -> None:
    assert read_agent(reader) is None
    assert read_host(reader) is None
    assert read_gpus(reader, NOW) == []
    assert read_runs(reader) == []
    assert gpu_history(reader, NOW - 60, NOW, 6) == {}
    assert host_history(reader, NOW - 60, NOW, 2).cpu_percent == (None, None)


def test_data_version_moves_with_anothers_commit(home: Home, reader: sqlite3.Connection) -> None:
    before = data_version(reader)
    assert data_version(reader) == before
    home.agent()
    assert data_version(reader) != before


# --- hardware


def test_gpus_join_newest_sample_lease_processes_and_what_the_driver_said(
    home: Home, reader: sqlite3.Connection
) -> None:
    overnight(home)
    gpus = read_gpus(reader, NOW + 0.5)
    assert [gpu.index for gpu in gpus] == list(range(8))
    busy = gpus[0]
    slow_one = gpus[3]
    stranger = gpus[5]
    lost = gpus[7]
    assert (busy.state, busy.utilization_percent, busy.age_seconds) == ("ok", 97.0, 0.5)
    assert (busy.run_id, busy.run_name, busy.rank) == ("gpt2-124m-1", "gpt2-124m", 0)
    assert gpus[2].rank == 2
    assert slow_one.throttle_reasons == ("hardware thermal slowdown",)
    assert busy.slow.pcie_generation == 5
    assert busy.facts.temperature_slowdown_celsius == 87.0
    assert stranger.run_id is None
    assert stranger.processes is not None
    assert stranger.processes[0].user == "alice"
    assert stranger.processes[0].rank is None
    assert (lost.state, lost.event_code) == ("lost", 79)
    assert mentions(lost.event_text, "off the bus")


def test_a_sample_grows_stale_and_an_unknown_value_stays_unknown(home: Home, reader: sqlite3.Connection) -> None:
    home.agent()
    home.gpus(2)
    home.sample(0, utilization=None, power=None, throttle=None)
    gpu, silent = read_gpus(reader, NOW + 1)
    assert (gpu.state, gpu.utilization_percent, gpu.power_watts, gpu.throttle_reasons) == ("ok", None, None, None)
    assert (silent.state, silent.age_seconds) == ("stale", None)
    assert silent.memory_total_bytes == 80 * GIB  # known from the facts before the first sample
    later = read_gpus(reader, NOW + 14)[0]
    assert (later.state, later.age_seconds) == ("stale", 14.0)


def test_staleness_follows_the_agents_interval(home: Home, reader: sqlite3.Connection) -> None:
    home.agent()
    home.connection.execute("UPDATE agent SET interval_seconds = 10")
    home.gpus(1)
    home.sample(0)
    assert read_gpus(reader, NOW + 14)[0].state == "ok"
    assert read_gpus(reader, NOW + 31)[0].state == "stale"


def test_a_lost_gpu_is_shown_for_a_day(home: Home, reader: sqlite3.Connection) -> None:
    home.gpus(2)
    home.lose(1, seconds_ago=0)
    assert [gpu.state for gpu in read_gpus(reader, NOW + 3600)] == ["stale", "lost"]
    assert len(read_gpus(reader, NOW + 2 * LOST_SHOWN_SECONDS)) == 1


def test_history_takes_means_and_leaves_gaps(home: Home, reader: sqlite3.Connection) -> None:
    home.gpus(1)
    for ago, value in ((29, 10), (25, 30), (5, 80)):
        home.sample(0, at=NOW - ago, utilization=value)
        home.host(NOW - ago)
    history = gpu_history(reader, NOW - 30, NOW, 3)[uuid(0)]
    assert history.utilization_percent == (20.0, None, 80.0)
    assert host_history(reader, NOW - 30, NOW, 3).cpu_percent == (34.0, None, 34.0)


def test_a_history_has_no_gaps_between_samples_of_minutes(home: Home, reader: sqlite3.Connection) -> None:
    home.gpus(1)
    for minute in (9, 8, 7, 3, 2, 1):
        home.sample(0, at=NOW - 60 * minute, utilization=minute)
    history = gpu_history(reader, NOW - 600, NOW, 30)[uuid(0)]
    earlier = [value for value in (9, 8) for _ in range(3)]
    later = [value for value in (3, 2, 1) for _ in range(3)]
    assert history.utilization_percent == (None,) * 3 + (*earlier, 7) + (None,) * 11 + (*later,)


def test_damaged_json_counts_as_unknown(home: Home, reader: sqlite3.Connection) -> None:
    home.gpus(1)
    home.connection.execute("UPDATE gpus SET facts = '{', slow = '[]', processes = 'x'")
    gpu = read_gpus(reader, NOW)[0]
    assert gpu.facts == GpuFacts(uuid(0), 0, gpu.name)
    assert gpu.slow == GpuSlowSample(uuid(0))
    assert gpu.processes == ()


# --- runs and studies


def test_runs_come_newest_first_and_active_ones_alone(home: Home, reader: sqlite3.Connection) -> None:
    overnight(home)
    assert [run.run_id for run in read_runs(reader)] == ["resnet50-2", "lr-sweep-3", "vit-b16-1", "gpt2-124m-1"]
    assert [run.run_id for run in read_runs(reader, active_only=True, limit=2)] == ["lr-sweep-3", "vit-b16-1"]
    assert [run.run_id for run in read_runs(reader, over_only=True)] == ["resnet50-2"]
    mark = runs_mark(reader)
    assert runs_mark(reader) == mark
    home.end_run("gpt2-124m-1", "succeeded")
    assert runs_mark(reader) != mark
    vit = find_run(reader, "vit-b16-1")
    assert vit.gpus == (uuid(6),)
    assert vit.attempt == 3
    assert vit.attempt_resumed_step == 8000
    assert vit.params["batch_size"] == 384
    assert json.loads(vit.spec_json)["params"]["batch_size"] == 512


def test_a_run_is_read_by_id_or_newest_name_and_changed_only_when_unambiguous(
    home: Home, reader: sqlite3.Connection
) -> None:
    for run_id, name in (("vit-1", "vit"), ("vit-10", "vit"), ("best-1", "best-1"), ("lm-1", "best"), ("x-1", "vit-1")):
        home.run(run_id, "succeeded", name=name, ended_ago=5.0)
    for id_or_name, run_id in (("vit-1", "vit-1"), ("best", "lm-1"), ("best-1", "best-1"), ("lm-1", "lm-1")):
        assert find_run(reader, id_or_name).run_id == find_run(reader, id_or_name, only=True).run_id == run_id
    assert find_run(reader, "vit").run_id == "vit-10"
    with pytest.raises(RunLookupError) as ambiguous:
        find_run(reader, "vit", only=True)
    assert ambiguous.value.candidates == ["vit-10", "vit-1"]
    for only, (prefix, nearest) in itertools.product(
        (False, True), {"lm": ["lm-1"], "bst-1": ["best-1"], "%": []}.items()
    ):
        with pytest.raises(RunLookupError) as caught:
            find_run(reader, prefix, only=only)
        assert caught.value.candidates[:1] == nearest


def test_only_what_exists_is_suggested(home: Home, reader: sqlite3.Connection) -> None:
    """Not the name of a launch, though that of a person."""
    home.run("hang-1", name="hang")
    home.run("vit-1", name="hangar")
    with pytest.raises(RunLookupError) as caught:
        find_run(reader, "hnag")
    assert set(caught.value.candidates) == {"hang-1", "hangar"}
    search(home, "lr-search-1")
    with pytest.raises(StudyLookupError, match=r"did you mean lr-search-1\?"):
        find_study(reader, "lr-serch")


@pytest.mark.parametrize(
    ("row", "has_checkpoint"),
    [
        (ledger_row("a.pt", attempt=2), True),
        (ledger_row("a.pt", attempt=3, verdict="doubtful"), True),
        (ledger_row("a.pt", attempt=2, origin="named", verdict="valid"), True),
        (ledger_row("a.pt", attempt=1), False),
        (ledger_row("a.pt", attempt=2, verdict="cut"), False),
        (ledger_row("a.pt", attempt=2, origin="contested"), False),
        (ledger_row("a.pt", attempt=2, gone_at=NOW), False),
        (None, False),
    ],
)
def test_a_run_that_is_over_has_a_checkpoint_where_the_ledger_has_a_candidate(
    home: Home, reader: sqlite3.Connection, row: CheckpointRow | None, has_checkpoint: bool
) -> None:
    home.run("a-1", "failed", attempt=3, ended_ago=10.0)
    for number, resumed_step in ((1, None), (2, None), (3, 30)):
        home.attempt("a-1", number, "failed", ended_ago=10.0, resumed_step=resumed_step)
    rows = [] if row is None else [row]
    checkpoints.save(home.connection, "a-1", (), rows)
    run = find_run(reader, "a-1")
    # Until its folder was looked into after its end, one may be there.
    expected = True if has_checkpoint else None
    assert run.has_checkpoint is expected
    checkpoints.note_scan(home.connection, "a-1", 3, "/c", NOW)
    assert find_run(reader, "a-1").has_checkpoint is has_checkpoint
    spans = spans_of(run, read_attempts(reader, "a-1"), NOW)
    assert bool(candidates(rows, spans)) is has_checkpoint


# --- incidents and events


def test_an_incident_is_one_line_of_its_cause_and_one_of_the_action_in_the_order_of_time(
    home: Home, reader: sqlite3.Connection
) -> None:
    home.run("a-1")

    def add(kind: EventKind, at: float, message: str, severity: Severity = "error", attempt: int = 1) -> None:
        event = NewEvent(kind, message, run_id="a-1", attempt=attempt, severity=severity)
        add_event(home.connection, event, now=NOW + at)

    add("observation", 1, "slow rank", "warning")
    add("observation", 10, "no progress: no rank computes; ending this attempt")
    add("observation", 11, "no progress, rank 0: it was at a.py:5")
    assert len(read_news(reader, limit=9)) == 3, "until its end is known, that is the cause"
    add("launched", 40, "another run")
    add("incident", 12, "rank 0 made no progress any more (it was at a.py:5)")
    add("decision", 41, "waiting 2 s", "warning")
    add("observation", 60, "no progress: again", attempt=2)
    news = [event.message.partition(" (")[0] for event in read_news(reader, limit=9)]
    assert news == [
        "slow rank", "rank 0 made no progress any more", "another run", "waiting 2 s", "no progress: again",
    ]  # fmt: skip
    assert len(read_news(reader, NOW + 11, limit=9)) == 3


def test_what_happened_comes_oldest_first_and_after_a_cursor(home: Home, reader: sqlite3.Connection) -> None:
    overnight(home)
    events = read_events(reader)
    assert [event.event_id for event in events] == [1, 2, 3]
    assert [event.event_id for event in read_events(reader, limit=2)] == [2, 3]
    assert read_events(reader, after_id=3) == []
    assert [event.subject for event in read_events(reader, "lr-sweep-3")] == ["lr-sweep-3"]
    home.connection.execute("UPDATE runs SET study_id = 'sweep-1' WHERE run_id = 'lr-sweep-3'")
    assert [event.event_id for event in read_news(reader, limit=2)] == [1, 2]
    # A start is news unless a resume, restart or retry has announced it.
    kinds: tuple[EventKind, ...] = (
        "launched", "attempt_started", "decision", "gpu_quarantined", "attempt_started", "stopped", "requeued",
        "attempt_started", "stopped", "attempt_started",
    )  # fmt: skip
    for kind in kinds:
        add_event(home.connection, NewEvent(kind, "a sentence", run_id="vit-b16-1"), now=home.now)
    news = [event.kind for event in read_news(reader, limit=7)]
    assert news == [kinds[at] for at in (1, 2, 3, 5, 6, 8, 9)]
    incidents = read_incidents(reader, "vit-b16-1")
    assert [incident.kind for incident in incidents] == ["cuda_oom", "gpu_lost"]
    assert len(incidents[0].evidence) == 1
    assert mentions(incidents[0].evidence[0], "error.json", "2.00 GiB")
    assert read_decisions(reader, "vit-b16-1")[0].actions == ("batch_size 512 → 384", "grad_accum 1 → 2")
    home.transition("vit-b16-1", "running", "recovering", "cuda_oom", 5500)
    assert read_transitions(reader, "vit-b16-1")[0].to_state == "recovering"


# --- JSON shapes


def test_json_shapes_are_what_the_commands_promise(home: Home, reader: sqlite3.Connection) -> None:
    overnight(home)
    gpu = json_shapes.gpu_shape(read_gpus(reader, NOW)[1])
    assert list(gpu) == [
        "index", "uuid", "name", "utilization_percent", "memory_used_bytes", "memory_reserved_bytes",
        "memory_total_bytes", "temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_mhz",
        "throttle_reasons", "state", "age_seconds", "run_id", "rank", "processes", "quarantine",
        "run_name", "step_seconds", "data_wait_fraction", "memory_utilization_percent", "memory_clock_mhz",
        "performance_state", "fan_percent", "memory_temperature_celsius", "pcie_generation", "pcie_width",
        "pcie_received_bytes_per_second", "pcie_sent_bytes_per_second", "nvlink_received_bytes_per_second",
        "nvlink_sent_bytes_per_second", "ecc_corrected", "ecc_uncorrected", "row_remap_pending", "row_remap_failed",
        "energy_joules", "pcie_replays", "encoder_percent", "decoder_percent", "pci_bus_id",
        "temperature_slowdown_celsius", "temperature_shutdown_celsius",
        "power_limit_default_watts", "power_limit_max_watts", "pcie_generation_max", "pcie_width_max",
        "compute_capability", "persistence_mode", "mig_mode", "memory_is_unified", "xids_last_day", "last_event",
            "run_ids", "locked_by", "excluded",
    ]  # fmt: skip
    assert gpu["pcie_width"] == 16
    assert gpu["nvlink_sent_bytes_per_second"] is None
    assert gpu["last_event"] is None
    assert gpu["processes"][0] == {
        "pid": 1001, "user": "me", "command": "python train.py", "memory_bytes": 40 * GIB, "run_id": "gpt2-124m-1",
        "rank": 1, "kind": "C", "sm_percent": None, "start_ticks": 5,
    }  # fmt: skip
    run_id = "vit-b16-1"
    record = json_shapes.show_shape(
        find_run(reader, run_id),
        read_attempts(reader, run_id),
        read_incidents(reader, run_id),
        read_decisions(reader, run_id),
    )
    assert list(record) == [
        "id", "name", "profile", "state", "attempt", "gpus", "params", "created_at", "started_at", "ended_at", "reason",
        "target", "placement", "study", "trial", "tags", "note", "size_bytes", "attempts", "cost_of_failures",
        "gpu_hours", "energy_joules", "energy_is_partial",
    ]  # fmt: skip
    first, second, third = record["attempts"]
    assert record["cost_of_failures"] is None
    assert first["incident"]["lost_steps"] is None
    assert first["exit"] == {"code": 1, "signal": None}
    assert first["incident"]["kind"] == "cuda_oom"
    assert first["incident"]["rank"] == 1
    assert first["decision"]["actions"] == ["batch_size 512 → 384", "grad_accum 1 → 2"]
    assert second["exit"] == {"code": None, "signal": 9}
    assert third["exit"] is None
    assert third["incident"] is None
    assert third["decision"] is None
    assert record["started_at"].endswith("Z")
    assert record["ended_at"] is None
    assert json.loads(json.dumps(record)) == record
    agent = json_shapes.agent_shape(read_agent(reader), running=True, home="/h")
    assert agent == {
        "running": True, "pid": 4242, "version": "0.1.0", "started_at": iso(NOW - 7200),
        "recording": False, "home": "/h",
    }  # fmt: skip
    assert json_shapes.agent_shape(read_agent(reader), running=False, home="/h")["pid"] is None
