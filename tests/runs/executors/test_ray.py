"""Jobs of Ray that wait too long for their cluster, or that it has forgotten; what is stored of a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gputui.runs.executors.ray.jobs_api import CALL_SECONDS, HttpAnswer, JobsApi
from gputui.runs.executors.ray.ray_runner import RayRunner
from gputui.runs.executors.remote_runner import UNSEEN_LOOKS

WAIT_SECONDS = 120.0


class Crowded(JobsApi):
    """A cluster without room, which fails each job that has waited for its time; the third may run."""

    def __init__(self, target: dict[str, Any]) -> None:
        super().__init__(target)
        self.records: dict[str, dict[str, Any]] = {}

    def call(
        self, method: str, path: str, body: Any = None, seconds: float = CALL_SECONDS, **query: str | int
    ) -> HttpAnswer:
        name = path.removeprefix("/api/jobs/")
        if name.endswith("/logs"):
            return HttpAnswer(200, b"{}")
        if method == "POST" and path == "/api/jobs/":
            assert body["submission_id"] not in self.records
            self.records[body["submission_id"]] = {"status": "PENDING"}
        elif method == "GET":
            record = self.records.get(name)
            status = 404 if record is None else 200
            return HttpAnswer(status, json.dumps(record).encode(), date=None)
        return HttpAnswer(200, b"{}", date=None)

    def fail(self, error_type: str) -> None:
        *_, last = self.records
        self.records[last] = {"status": "FAILED", "error_type": error_type}


def ray_attempt(tmp_path: Path, **target: Any) -> Path:
    folder = tmp_path / "attempts" / "1"
    folder.mkdir(parents=True)
    target = {"name": "hub", "kind": "ray", "address": "http://127.0.0.1:1", **target}
    plan = {"attempt": 1, "run_id": "a-1", "argv": ["true"], "target": target, "output": "output.log", "metrics": []}
    asks = {"gpus": 1, "ranks": 1}
    (folder / "attempt.json").write_text(json.dumps({**plan, "asks": asks, "grace_seconds": 5.0}))
    return folder


def ray_turn(runner: RayRunner) -> bool:
    runner.contacts.due_at = 0.0
    return runner.poll()


class Forgetful(JobsApi):
    """A head that was begun anew: it answers, and knows no job."""

    def call(self, *_: Any, **__: Any) -> HttpAnswer:
        return HttpAnswer(404, b"")


def test_a_stop_ends_what_a_cluster_that_does_not_answer_never_got(tmp_path: Path) -> None:
    runner = RayRunner(ray_attempt(tmp_path))
    assert not ray_turn(runner)
    assert runner.contacts.problem is not None
    runner.stop = {"at": 1.0, "at_once": False, "asked": False}
    assert ray_turn(runner)


def test_a_job_that_waited_too_long_for_its_cluster_is_submitted_again(tmp_path: Path) -> None:
    folder = ray_attempt(tmp_path, shared=True)
    runner = RayRunner(folder)
    api = Crowded(dict(runner.target))
    runner.api = api
    for turns in range(1, 4):
        assert not ray_turn(runner)
        assert runner.status is not None
        assert runner.status.state == "pending"
        assert len(api.records) == turns
        if turns < 3:
            api.fail("JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert not (folder / "exit.json").exists()
    # Once a person has stopped the run, no new job replaces one that waited too long.
    runner.stop = {"at": 1.0, "at_once": False, "asked": False}
    api.fail("JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert any(ray_turn(runner) for _ in range(UNSEEN_LOOKS))
    assert len(api.records) == 3
    assert json.loads((folder / "exit.json").read_text())["stop_requested"]


def test_a_job_that_its_cluster_has_forgotten_has_ended(tmp_path: Path) -> None:
    folder = ray_attempt(tmp_path)
    (folder / "remote").mkdir()
    (folder / "submit.json").write_text(json.dumps({"token": "t", "at": 1.0}))
    (folder / "handle.json").write_text(json.dumps({"job": "gputui-a-1.1-t"}))
    for name, text in (("claim", "gputui-a-1.1-t"), ("started.json", "{}")):
        (folder / "remote" / name).write_text(text)
    runner = RayRunner(folder)
    runner.api = Forgetful(dict(runner.target))
    for _ in range(UNSEEN_LOOKS):
        is_over = ray_turn(runner)
    record = json.loads((folder / "exit.json").read_text())
    assert is_over
    assert record.get("ended_by") == "node_fail"


def test_the_reason_of_a_failed_job_is_without_its_output(tmp_path: Path) -> None:
    runner = RayRunner(ray_attempt(tmp_path))
    said = "Job entrypoint command failed with exit code 127"
    runner.record = {
        "status": "FAILED",
        "message": f"{said}, last available logs (truncated to 20,000 chars):\nno python",
    }
    assert runner.state_of("job").reason == said
