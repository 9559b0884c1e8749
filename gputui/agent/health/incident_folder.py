"""The incident folder: evidence, log tails, GPU samples and the decision, archived in the run's
folder for people.

A job writes it after the decision. Nothing depends on it, so a full disk costs only the archive.
The evidence is redacted when it is collected; here, secrets that are recognized by their form are
redacted too.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui.agent.jobs import Jobs
from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from gputui.core.redaction import redact_params, redact_text
from gputui.recovery.classify import Incident
from gputui.recovery.decide import RecoveryPlan
from gputui.recovery.evidence import Evidence
from gputui.store.database import StoreError, open_reader
from gputui.store.json_shapes import iso
from gputui.store.samples import WINDOW_COLUMNS, samples_between

log = logging.getLogger(__name__)

AROUND_SECONDS = 300.0
KEEP_SECONDS = 600.0
LOG_CHARACTERS = 64 * 1024
ALL_LOGS_CHARACTERS = 4 * 1024 * 1024
TEXT_CHARACTERS = 64 * 1024
GPU_ROWS = 20_000

README = """\
Attempt {number} of {run} ended at {at}: {summary}.

decision.json   what the incident was taken for, and what was decided
evidence.json   what it was concluded from: exit status, error files, the driver and the kernel
logs/           the end of every log
gpus.csv        the run's GPUs from 5 minutes before the end to 5 minutes after it (if it had any)

`gputui explain {run}` tells the whole story; `gputui rm {run}` removes this folder with the run.
"""


class IncidentArchive(Struct, frozen=True):
    """Content of an incident folder. ``at`` is the end of the attempt (UTC unix seconds)."""

    run_dir: Path
    run_id: str
    attempt: int
    at: float
    gpus: tuple[str, ...]
    evidence: Evidence
    incident: Incident
    plan: RecoveryPlan
    database: Path


def incident_folder(run_dir: Path, attempt: int, kind: str | None = None) -> Path:
    """The folder of an attempt's evidence; with ``kind``, of an incident while it lived."""
    return run_dir / "incidents" / (str(attempt) if kind is None else f"{attempt}-{kind}")


def start_archiving(archive: IncidentArchive, jobs: Jobs) -> None:
    """Write the folder in a job; GPU samples are completed AROUND_SECONDS later."""
    name, work = f"keeping the evidence of {archive.run_id}", partial(_guarded, write, archive)
    jobs.start(name, work, deadline_seconds=KEEP_SECONDS)
    if archive.gpus:
        later = threading.Timer(AROUND_SECONDS, _guarded, (write_gpus, archive))
        later.daemon = True
        later.start()


def _guarded(work: Callable[[IncidentArchive], None], archive: IncidentArchive) -> None:
    try:
        work(archive)
    except (OSError, StoreError, sqlite3.Error) as error:
        words = "%s: the evidence of attempt %d is incomplete: %s"
        log.warning(words, archive.run_id, archive.attempt, error)


def write(archive: IncidentArchive) -> None:
    """Write the folder. Raises OSError, StoreError or sqlite3.Error and leaves what was written
    until then."""
    folder = incident_folder(archive.run_dir, archive.attempt)
    # The run's own folder is not created: it is missing if the run was removed.
    for made in (folder.parent, folder, folder / "logs"):
        made.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    summary, at = redact_text(archive.incident.summary), iso(archive.at)
    readme = README.format(number=archive.attempt, run=archive.run_id, at=at, summary=summary)
    write_text(folder / "README.txt", readme)
    plan = archive.plan
    decision = {
        "run": archive.run_id,
        "attempt": archive.attempt,
        "ended_at": at,
        "incident": msgspec.to_builtins(archive.incident),
        "decision": {
            "verdict": plan.verdict,
            "because": plan.because,
            "rung": plan.rung,
            "reason": plan.reason,
            "actions": plan.actions_json(),
            "params": redact_params(plan.params),
            "changed": redact_params(plan.changed),
            "resume_from": plan.resume_from,
            "delay_seconds": plan.delay_seconds,
        },
    }
    found = archive.evidence.to_json()
    del found["tails"]
    for name, value in (("decision.json", decision), ("evidence.json", found)):
        text = json.dumps(_bounded(value), indent=2, ensure_ascii=False)
        write_text(folder / name, f"{text}\n")
    write_gpus(archive)
    remaining = ALL_LOGS_CHARACTERS
    for tail in archive.evidence.tails:
        most = min(LOG_CHARACTERS, remaining)
        if most and (text := redact_text(tail.text[-most:])):
            who = "launcher" if tail.rank is None else f"rank{tail.rank}"
            write_text(folder / "logs" / f"{who}-{tail.stream}.txt", text)
            remaining = max(0, remaining - len(text))


def write_gpus(archive: IncidentArchive) -> None:
    """Write the GPU samples that exist by now. Raises as `write` does."""
    if not archive.gpus:
        return
    since, until = archive.at - AROUND_SECONDS, archive.at + AROUND_SECONDS
    with closing(open_reader(archive.database)) as connection:
        rows = samples_between(connection, archive.gpus, since, until, GPU_ROWS)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([WINDOW_COLUMNS, *rows])
    write_text(incident_folder(archive.run_dir, archive.attempt) / "gpus.csv", text.getvalue())


def _bounded(value: Any) -> Any:
    """JSON data with redacted strings, of which only the last TEXT_CHARACTERS are kept."""
    if isinstance(value, str):
        return redact_text(value[-TEXT_CHARACTERS:])
    if isinstance(value, dict):
        return {name: _bounded(item) for name, item in value.items()}
    return [_bounded(item) for item in value] if isinstance(value, list | tuple) else value


def write_text(path: Path, text: str) -> None:
    """Write a private file. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
