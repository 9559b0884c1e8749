"""The folder of an incident's evidence, and the last words of a hung attempt: whole enough, and without secrets."""

from __future__ import annotations

import csv
import json
import sqlite3
import stat

from gputui.agent.health.incident_folder import BEFORE_SECONDS, LOG_CHARACTERS, incident_folder, write
from gputui.agent.lifecycle.live_attempt import PostmortemResult, PostmortemTask
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.config import Workspace
from gputui.core.redaction import BY_LOOK
from gputui.recovery.classify import Incident
from gputui.recovery.evidence import ErrorFile, Evidence, EvidenceLog, ExitRecord
from gputui.recovery.plans import RecoveryPlan
from gputui.recovery.policies import POLICIES
from gputui.store.attempts import Attempt
from tests.homes import SPEC, add_gpu
from tests.texts import mentions

END = 1_790_000_000.0
TOKEN = "hf_" + "a1B2" * 8


def test_everything_is_there_and_no_secret(workspace: Workspace, connection: sqlite3.Connection) -> None:
    run_dir = workspace.run_dir("job-1")
    run_dir.mkdir()
    for uuid in ("GPU-0", "GPU-1"):
        place = add_gpu(connection, uuid)
        connection.executemany(
            "INSERT INTO gpu_samples (at, gpu_id, state, power_watts) VALUES (?, ?, 'ok', 300)",
            [(END + second, place) for second in range(-400, 401, 100)],
        )
    tails = (
        EvidenceLog(rank=None, stream="output", text="torchrun says\n"),
        EvidenceLog(1, "stderr", "x" * (2 * LOG_CHARACTERS) + f"\nlogged in with {TOKEN}\n"),
    )
    evidence = Evidence(
        ExitRecord(code=1),
        "torchrun",
        tails=tails,
        errors=(ErrorFile(1, f"no access with {TOKEN}", callstack=None, at=None),),
    )
    incident = Incident(
        "cuda_oom",
        1,
        40,
        summary="rank 1 ran out of GPU memory",
        fingerprint="f",
        evidence_lines=("rank 1: CUDA out of memory",),
    )
    plan = RecoveryPlan("retry", "lowered batch_size 16 → 12", "ladder", {"batch_size": 12, "api_key": "hush-hush"})
    attempt = Attempt("job-1", 2, "failed", params={}, gpus=("GPU-1",), launch={}, created_at=END - 900)
    task = PostmortemTask(
        resolved=ResolvedRun(SPEC, POLICIES["standard"], BY_LOOK), folder=run_dir, attempt=attempt,
        exit_record={}, survivors=(), rebooted=False, ended_at=END, checkpoints=None,
    )  # fmt: skip
    write(workspace, task, PostmortemResult(evidence, incident, checkpoints=None), plan)
    folder = incident_folder(run_dir, 2)
    assert folder == run_dir / "incidents" / "2"
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    logs = {"logs/launcher-output.txt", "logs/rank1-stderr.txt"}
    assert files.keys() == {"README.txt", "decision.json", "evidence.json", "gpus.csv", *logs}
    for path in folder.rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected
    assert not [name for name, text in files.items() if TOKEN in text or "hush-hush" in text]
    assert mentions(files["README.txt"], "rank 1", "GPU memory")
    decision = json.loads(files["decision.json"])
    recorded_evidence = json.loads(files["evidence.json"])
    assert decision["incident"]["kind"] == "cuda_oom"
    assert decision["decision"]["params"]["batch_size"] == 12
    assert recorded_evidence["exit"]["code"] == 1
    assert "tails" not in recorded_evidence
    log = files["logs/rank1-stderr.txt"]
    assert len(log) <= LOG_CHARACTERS
    assert log.endswith("logged in with [redacted]\n")
    rows = list(csv.DictReader(files["gpus.csv"].splitlines()))
    assert {row["uuid"] for row in rows} == {"GPU-1"}
    times = [float(row["at"]) - END for row in rows]
    assert times == sorted(times)
    assert times[0] == -BEFORE_SECONDS
    assert rows[0]["power_watts"] == "300.0"
    assert rows[0]["temperature_celsius"] == ""
