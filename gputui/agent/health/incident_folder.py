"""An incident's evidence, kept in the run's folder for whoever looks later: what was found, the end of every log, the
GPUs around it, and what was decided.

Written in a job after the decision; nothing depends on it, and a full disk costs no more than the evidence.
Secrets were taken out of the evidence when it was gathered; those that are known by their look are taken out here.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gputui.agent.jobs import Jobs
from gputui.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from gputui.recovery.classify import Incident
from gputui.recovery.decide import RecoveryPlan
from gputui.recovery.evidence import Evidence, EvidenceLog
from gputui.redaction import redact_params, redact_text
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
evidence.json   what it was concluded from: exit status, error files, reports of the driver and the kernel
logs/           the end of every log
gpus.csv        the run's GPUs from 5 minutes before the end to 5 minutes after it (if it had any)

`gputui explain {run}` tells the whole story; `gputui rm {run}` removes this folder with the run.
"""


@dataclass(frozen=True, slots=True)
class IncidentArchive:
    """What is to be kept. ``at`` is the end of the attempt, in UTC unix seconds."""

    run_dir: Path
    run_id: str
    attempt: int
    at: float
    gpus: tuple[str, ...]
    evidence: Evidence
    incident: Incident
    plan: RecoveryPlan
    database: Path


def incident_folder(run_dir: Path, attempt: int) -> Path:
    return run_dir / "incidents" / str(attempt)


def keep(keepsake: IncidentArchive, jobs: Jobs) -> None:
    """Write it in a job; where the run had GPUs, their samples are completed when the time after it is over."""
    jobs.start(f"keeping the evidence of {keepsake.run_id}", partial(_keep, keepsake), deadline_seconds=KEEP_SECONDS)
    if keepsake.gpus:
        later = threading.Timer(AROUND_SECONDS, _complete, (keepsake,))
        later.daemon = True
        later.start()


def write(keepsake: IncidentArchive) -> None:
    """Write the folder. Raises OSError, StoreError or sqlite3.Error; what was written until then stays."""
    folder = incident_folder(keepsake.run_dir, keepsake.attempt)
    # The run's own folder is not made: where it is gone, the run was removed meanwhile.
    folder.parent.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    folder.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    summary = redact_text(keepsake.incident.summary)
    write_text(
        folder / "README.txt",
        README.format(number=keepsake.attempt, run=keepsake.run_id, at=iso(keepsake.at), summary=summary),
    )
    write_text(folder / "decision.json", _json(_decision(keepsake)))
    found = keepsake.evidence.to_json()
    del found["tails"]
    write_text(folder / "evidence.json", _json(found))
    write_gpus(keepsake, folder)
    _write_logs(keepsake.evidence.tails, folder / "logs")


def write_gpus(keepsake: IncidentArchive, folder: Path) -> None:
    """The samples that there are by now. Raises as `write` does."""
    if not keepsake.gpus:
        return
    since, until = keepsake.at - AROUND_SECONDS, keepsake.at + AROUND_SECONDS
    with closing(open_reader(keepsake.database)) as connection:
        rows = samples_between(connection, keepsake.gpus, since, until, GPU_ROWS)
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(WINDOW_COLUMNS)
    table.writerows(rows)
    write_text(folder / "gpus.csv", text.getvalue())


def _keep(keepsake: IncidentArchive) -> None:
    try:
        write(keepsake)
    except (OSError, StoreError, sqlite3.Error) as error:
        log.warning("%s: the evidence of attempt %d is incomplete: %s", keepsake.run_id, keepsake.attempt, error)
    except Exception:
        log.exception("%s: the evidence of attempt %d was not kept", keepsake.run_id, keepsake.attempt)


def _complete(keepsake: IncidentArchive) -> None:
    try:
        write_gpus(keepsake, incident_folder(keepsake.run_dir, keepsake.attempt))
    except FileNotFoundError:
        return  # the run was removed
    except (OSError, StoreError, sqlite3.Error) as error:
        log.warning("%s: the GPU samples of attempt %d: %s", keepsake.run_id, keepsake.attempt, error)


def _write_logs(tails: tuple[EvidenceLog, ...], folder: Path) -> None:
    folder.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    left = ALL_LOGS_CHARACTERS
    for tail in tails:
        text = redact_text(tail.text[-min(LOG_CHARACTERS, left) :]) if left > 0 else ""
        if text:
            who = "launcher" if tail.rank is None else f"rank{tail.rank}"
            write_text(folder / f"{who}-{tail.stream}.txt", text)
            left -= len(text)


def _decision(keepsake: IncidentArchive) -> dict[str, Any]:
    plan = keepsake.plan
    return {
        "run": keepsake.run_id,
        "attempt": keepsake.attempt,
        "ended_at": iso(keepsake.at),
        "incident": asdict(keepsake.incident),
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


def _json(value: Any) -> str:
    return json.dumps(_bounded(value), indent=2, ensure_ascii=False) + "\n"


def _bounded(value: Any) -> Any:
    """Plain data with long texts cut at their beginning, and secrets that are known by their look taken out."""
    if isinstance(value, str):
        return redact_text(value[-TEXT_CHARACTERS:])
    if isinstance(value, dict):
        return {name: _bounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(item) for item in value]
    return value


def write_text(path: Path, text: str) -> None:
    """Write a file readable by its owner only. Raises OSError; one that cannot be written whole is not left behind."""
    # O_NONBLOCK: a FIFO in its place is refused, not waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
