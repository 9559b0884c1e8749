"""The folder of an incident's evidence, for people, and for a run that is read back after its
database was lost.

A job writes it after the decision; a full disk costs only the folder. Evidence is redacted when it
is collected; here, secrets that are recognized by their form are redacted too.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from gputui.agent.lifecycle.live_attempt import PostmortemResult, PostmortemTask
from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, Workspace
from gputui.core.files import read_regular
from gputui.core.redaction import redact_params, redact_text
from gputui.core.units import iso
from gputui.recovery.evidence import EvidenceLog
from gputui.recovery.plans import RecoveryPlan
from gputui.store.database import open_reader
from gputui.store.run_history import NewIncident
from gputui.store.samples import WINDOW_COLUMNS, samples_between

BEFORE_SECONDS = 300.0  # a GPU that throttles or a host that fills up does so for minutes
LOG_CHARACTERS = 64 * 1024  # some 500 lines, where the traceback is among the last
ALL_LOGS_CHARACTERS = 4 * 1024 * 1024  # 64 ranks with a whole log each
DECISION_FILE = "decision.json"
MAX_DECISION_BYTES = 4 << 20  # the evidence of thousands of ranks
TEXT_CHARACTERS = 64 * 1024  # as of a log
GPU_ROWS = 20_000  # ten minutes of 32 GPUs

README = """\
Attempt {number} of {run} ended at {at}: {summary}.

decision.json   what the incident was taken for, and what was decided
evidence.json   what it was concluded from: exit status, error files, the driver and the kernel
logs/           the end of every log, with the stacks of ranks that hung
processes.txt   the processes of an attempt that hung
gpus.csv        the run's GPUs from 5 minutes before the end on (if it had any)

`gputui explain {run}` tells the whole story; `gputui rm {run}` removes this folder with the run.
"""


# The fields of `NewIncident` that have the same name in the file.
_OF_INCIDENT = ("kind", "rank", "step", "summary", "fingerprint", "witnesses")
_OF_DECISION = ("verdict", "rung", "reason", "actions", "changed", "resume_from", "delay_seconds")


def read_back(run_dir: Path, attempt: int, ended_at: float) -> NewIncident | None:
    """The incident and the decision that an attempt's folder keeps, of an end at ``ended_at`` (UTC
    unix seconds); None if there are none that can be read."""
    try:
        text = read_regular(incident_folder(run_dir, attempt) / DECISION_FILE, MAX_DECISION_BYTES)
        stored = msgspec.json.decode(text)
        incident = stored["incident"]
        decision = stored["decision"]
        fields = {name: incident[name] for name in _OF_INCIDENT} | {name: decision[name] for name in _OF_DECISION}
        fields |= {"run_id": stored["run"], "attempt": stored["attempt"], "evidence": incident["evidence_lines"]}
        new = msgspec.convert({**fields, "at": ended_at, "decided_at": ended_at}, NewIncident)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if (new.run_id, new.attempt) == (run_dir.name, attempt):
        return new
    return None


def incident_folder(run_dir: Path, attempt: int) -> Path:
    """The folder of an attempt's evidence."""
    return run_dir / "incidents" / str(attempt)


def write(workspace: Workspace, task: PostmortemTask, findings: PostmortemResult, plan: RecoveryPlan) -> None:
    """Write the folder of an attempt. Raises OSError, StoreError or sqlite3.Error and leaves what
    was written until then."""
    run_id = task.attempt.run_id
    number = task.attempt.number
    incident = findings.incident
    folder = incident_folder(workspace.run_dir(run_id), number)
    # The run's own folder is not created: it is missing if the run was removed.
    for directory in (folder.parent, folder, folder / "logs"):
        directory.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    summary = redact_text(incident.summary)
    at = iso(task.ended_at)
    write_text(folder / "README.txt", README.format(number=number, run=run_id, at=at, summary=summary))
    decision = {
        "run": run_id,
        "attempt": number,
        "ended_at": at,
        "incident": msgspec.to_builtins(incident),
        "decision": _plan_json(plan),
    }
    evidence = findings.evidence.to_json()
    del evidence["tails"]
    for name, content in ((DECISION_FILE, decision), ("evidence.json", evidence)):
        text = json.dumps(_bounded(content), indent=2, ensure_ascii=False)
        write_text(folder / name, f"{text}\n")
    _write_logs(folder / "logs", findings.evidence.tails)
    if task.attempt.gpus:
        with closing(open_reader(workspace.database)) as connection:
            begin = task.ended_at - BEFORE_SECONDS
            end = task.ended_at + BEFORE_SECONDS
            rows = samples_between(connection, task.attempt.gpus, begin, end, GPU_ROWS)
        table = io.StringIO(newline="")
        csv.writer(table, lineterminator="\n").writerows([WINDOW_COLUMNS, *rows])
        write_text(folder / "gpus.csv", table.getvalue())


def _plan_json(plan: RecoveryPlan) -> dict[str, object]:
    return {
        "verdict": plan.verdict,
        "because": plan.because,
        "rung": plan.rung,
        "reason": plan.reason,
        "actions": plan.actions_json(),
        "params": redact_params(plan.params),
        "changed": redact_params(plan.changed),
        "resume_from": plan.resume_from,
        "delay_seconds": plan.delay_seconds,
    }


def _write_logs(folder: Path, tails: Iterable[EvidenceLog]) -> None:
    """Write the ends of logs, without secrets, while there is room. Raises OSError."""
    remaining = ALL_LOGS_CHARACTERS
    for tail in tails:
        limit = min(LOG_CHARACTERS, remaining)
        if limit and (text := redact_text(tail.text[-limit:])):
            who = "launcher" if tail.rank is None else f"rank{tail.rank}"
            write_text(folder / f"{who}-{tail.stream}.txt", text)
            remaining = max(0, remaining - len(text))


def _bounded(value: Any) -> Any:
    """JSON data with redacted strings, of which only the last TEXT_CHARACTERS are kept."""
    if isinstance(value, str):
        return redact_text(value[-TEXT_CHARACTERS:])
    if isinstance(value, dict):
        return {name: _bounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(item) for item in value]
    return value


def write_text(path: Path, text: str) -> None:
    """Write a private file. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
