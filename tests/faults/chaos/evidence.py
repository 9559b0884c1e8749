"""The records of a run, compared with its real lineage."""

from __future__ import annotations

import csv
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.machines import Machine

LEFT_SECONDS = 60.0
# Kinds of incident that the drill's own kills may be classified as.
DONE_HERE = frozenset({"killed", "shim_lost", "peer_lost"})
# Kinds that a full disk may be classified as; the last two if there was no room for the message either.
FULL_DISK = frozenset({"disk_full", "launch_failed", "nonzero_exit", "unknown"})


def need_none(machine: Machine, remaining: Callable[[], object], what: str, start_code: int | None = 0) -> None:
    """Wait until nothing remains, with an agent alive. ``start_code`` is the code with which the start of one must end,
    None for any. Raises AssertionError where something remains after a minute."""
    deadline = time.monotonic() + LEFT_SECONDS
    while leftovers := remaining():
        assert time.monotonic() < deadline, f"{what} left: {leftovers}"
        if machine.agent() is None:
            machine.gputui("agent", "start", code=start_code)
        time.sleep(0.1)


def notes(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a script's own notes; one that was cut short by a full disk is none."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def check_run(machine: Machine, run_id: str, was_full: Callable[[float], bool], checked: Counter[str]) -> str:
    """Check a run and return its end. ``was_full`` says whether the disk was at a time; ``checked``
    counts what was compared. Raises AssertionError where something of the run was lost, doubled or
    taken from elsewhere."""
    ((state, reason),) = machine.rows("SELECT state, reason FROM runs WHERE run_id = ?", run_id)
    assert state == "succeeded" or reason, f"{run_id} is {state} without a reason"
    for attempt, kind, at, summary, evidence in machine.rows(
        "SELECT attempt, kind, at, summary, evidence FROM incidents WHERE run_id = ?", run_id
    ):
        allowed = DONE_HERE | FULL_DISK if was_full(at) else DONE_HERE
        assert kind in allowed, f"{run_id}, attempt {attempt}: {kind}: {summary}; {evidence}"
    ((verdict, why),) = machine.rows(
        "SELECT verdict, reason FROM decisions WHERE run_id = ? ORDER BY decision_id DESC LIMIT 1", run_id
    ) or [(None, None)]
    assert state == "succeeded" or (verdict == "stop" and reason.endswith(why)), f"{run_id}: {reason}; {why}"
    unfinished = machine.rows("SELECT number FROM attempts WHERE run_id = ? AND ended_at IS NULL", run_id)
    assert unfinished == [], f"{run_id}: attempts without an end: {unfinished}"
    folder = machine.workspace.run_dir(run_id)
    by_attempt: dict[int, list[tuple[int, float]]] = {}
    for attempt, step, at in machine.timed_steps(run_id):
        by_attempt.setdefault(attempt, []).append((step, at))
    for attempt, lines in by_attempt.items():
        for (step, _), (later, at) in itertools.pairwise(lines):
            # A script goes on without the lines for which a full disk has no room.
            is_next = later == step + 1 or (later > step and was_full(at))
            assert is_next, f"{run_id}, attempt {attempt}: step {later} follows step {step}"
    if (folder / "starts.jsonl").exists():
        check_lines(machine, run_id, folder, checked)
        check_courses(machine, run_id, folder, checked)
    else:
        check_count(machine, run_id, folder)
    return str(state)


def check_count(machine: Machine, run_id: str, folder: Path) -> None:
    """As many lines are stored or refused as were written."""
    metrics = folder / "metrics.jsonl"
    written = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    ((stored, rejected),) = machine.rows(
        "SELECT (SELECT count(*) FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ?1), "
        "(SELECT coalesce(sum(rejected_count), 0) FROM metric_sources WHERE run_id = ?1)",
        run_id,
    )
    assert stored + rejected == written, f"{run_id}: {written} lines, {stored} stored and {rejected} refused"


def check_lines(machine: Machine, run_id: str, folder: Path, checked: Counter[str]) -> None:
    """Every line that ever existed is stored exactly once."""
    rows = machine.rows(
        "SELECT json_extract(data, '$.serial') FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ?",
        run_id,
    )
    stored = Counter(int(row[0]) for row in rows if row[0] is not None)
    journal = notes(folder / "journal.jsonl")
    written = {note["serial"] for note in journal if "serial" in note}
    in_files = serials(folder)
    assert set(stored) <= written | in_files, (
        f"{run_id}: stored, never written: {sorted(set(stored) - written - in_files)}"
    )
    begun, done = (sum(word in note for note in journal) for word in ("rewriting", "rewritten"))
    if begun != done:
        # A script that is killed while it writes its file again loses lines itself, and what it writes next is new.
        assert in_files <= set(stored), f"{run_id}: lost {sorted(in_files - set(stored))}"
        checked["files whose rewriting in place was cut short"] += 1
        return
    assert written <= in_files, f"{run_id}: the script lost {sorted(written - in_files)}"
    assert in_files == set(stored), f"{run_id}: lost {sorted(in_files - set(stored))}"
    doubled = {serial: count for serial, count in stored.items() if count > 1}
    assert not doubled, f"{run_id}: stored more than once: {doubled}"
    checked["lines"] += len(in_files)
    checked["files written again in place"] += done
    checked["files replaced"] += sum("replaced" in note for note in journal)


def serials(folder: Path) -> set[int]:
    """The serial numbers of the whole lines that a run's file has."""
    table = folder / "table.csv"
    if table.exists():
        _, *rows = csv.reader(table.read_text().splitlines())
        return {int(row[1]) for row in rows if len(row) > 2}
    metrics = folder / "metrics.jsonl"
    data = metrics.read_bytes() if metrics.exists() else b""
    return {json.loads(line)["serial"] for line in re.findall(rb"\{[^{}\n]*\}(?=\n)", data)}


def check_courses(machine: Machine, run_id: str, folder: Path, checked: Counter[str]) -> None:
    """No attempt was started twice, and each went on with the lineage that the one before it had, or began its own."""
    starts = notes(folder / "starts.jsonl")
    twice = [number for number, count in Counter(note["attempt"] for note in starts).items() if count > 1]
    assert not twice, f"{run_id}: attempts started more than once: {twice}"
    loaded = {note["attempt"]: note["lineage"] for note in starts}
    lineage = 0
    for number, resumed_from in machine.rows(
        "SELECT number, resumed_from FROM attempts WHERE run_id = ? ORDER BY number", run_id
    ):
        if resumed_from is None:
            lineage = number
        else:
            place = Path(resumed_from).parent
            where = "of its own" if place.is_relative_to(folder) else f"that runs share ({place.name})"
            checked[f"attempts that went on from a checkpoint in a folder {where}"] += number in loaded
        assert loaded.get(number, lineage) == lineage, (
            f"{run_id}, attempt {number} went on with lineage {loaded[number]} from {resumed_from}, not {lineage}"
        )
