"""Runs on a real Ray head, from launch to end; the test makes and ends it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.executors.courier import UNSEEN_LOOKS
from gputui.runs.executors.ray.jobs_api import CALL_SECONDS, HttpAnswer, JobsApi
from gputui.runs.executors.ray.ray_courier import RayCourier
from tests.conftest import wait_until
from tests.machines import Machine
from tests.runs.executors.ray_cluster import RayCluster, program
from tests.runs.executors.target_home import TargetHome

WAIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    made = RayCluster(program())
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Lab(TargetHome):
    """A home with the cluster as its target; the profile's code lies in a git checkout."""

    wait_seconds = WAIT_SECONDS

    def __init__(self, machine: Machine, cluster: RayCluster) -> None:
        super().__init__(machine)
        self.cluster = cluster
        self.there = machine.folder / "there"
        self.code = self.keep_code_in_git()
        self.set_target(python=sys.executable, folder=str(self.there), **self.cluster.target())

    def launch(self, *changes: str, gpus: int | None = 0) -> str:
        return super().launch(*changes, gpus=gpus)

    def run_dir(self, run_id: str) -> Path:
        """The run's folder as its job sees it."""
        found = list(self.there.glob(f"*/{run_id}"))
        return found[0] if found else self.machine.workspace.run_dir(run_id)

    def jobs(self, run_id: str) -> list[str]:
        """The jobs that served a run; those that carried a signal are left out."""
        return [name for name in self.cluster.names() if name.startswith(f"gputui-{run_id}.") and "signal" not in name]


@pytest.fixture
def lab(machine: Machine, cluster: RayCluster) -> Iterator[Lab]:
    made = Lab(machine, cluster)
    yield made
    for name in cluster.names():
        record = cluster.api().job(name)
        if record is not None and record["status"] in ("PENDING", "RUNNING"):
            cluster.api().stop(name)


@pytest.mark.long
def test_a_run_is_sent_there_with_its_code_and_comes_back_line_by_line(lab: Lab) -> None:
    run_id = lab.launch("steps=100000", gpus=1)
    wait_until(lambda: (lab.machine.workspace.run_dir(run_id) / "code.zip").exists(), WAIT_SECONDS, "the code")
    (lab.code / "steps.py").write_text("raise SystemExit('edited after the launch')")
    lab.wait_for_step(run_id, 20)
    there = lab.run_dir(run_id)
    plan = json.loads((there / "attempts" / "1" / "far" / "attempt.json").read_text())
    assert Path(plan["cwd"], "steps.py").is_file() and not Path(plan["cwd"], "ignored.bin").exists()
    assert (there / "attempts" / "1" / "far" / "attempt.json").stat().st_mode & 0o077 == 0
    lab.finish(run_id, lab.run_dir(run_id))
    shown = lab.shown(run_id)
    assert shown["placement"]["state"] == "ended" and shown["target"] == "lab"
    assert len(shown["placement"]["nodes"]) == 1 and shown["placement"]["job"] in lab.jobs(run_id)
    assert "done" in lab.machine.gputui("logs", run_id)


@pytest.mark.long
def test_a_stop_saves(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    assert lab.stop(run_id, lab.run_dir(run_id)) > 5


@pytest.mark.long
def test_a_script_that_fails_goes_on_from_its_checkpoint_there_with_the_same_code(lab: Lab) -> None:
    run_id = lab.launch("steps=60", "fail_at=25", "seconds=0.05")
    wait_until(lambda: (lab.machine.workspace.run_dir(run_id) / "code.zip").exists(), WAIT_SECONDS, "the code")
    (lab.code / "steps.py").write_text("raise SystemExit('edited after the launch')")
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    first, second = lab.shown(run_id)["attempts"]
    assert first["incident"]["kind"] == "user_exception" and second["state"] == "succeeded"
    assert lab.steps(run_id) == [*range(26), *range(20, 60)]


class Crowded(JobsApi):
    """A cluster without room, which fails each job that has waited for its time; the third may run."""

    def __init__(self, target: dict[str, Any]) -> None:
        super().__init__(target)
        self.records: dict[str, dict[str, Any]] = {}

    def call(
        self, method: str, path: str, given: Any = None, seconds: float = CALL_SECONDS, **query: str | int
    ) -> HttpAnswer:
        name = path.removeprefix("/api/jobs/")
        if name.endswith("/logs"):
            return HttpAnswer(200, b"{}")
        if method == "POST" and path == "/api/jobs/":
            assert given["submission_id"] not in self.records
            self.records[given["submission_id"]] = {"status": "PENDING"}
        elif method == "GET":
            found = self.records.get(name)
            return HttpAnswer(404 if found is None else 200, json.dumps(found).encode(), None)
        return HttpAnswer(200, b"{}", None)

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


def ray_turn(courier: RayCourier) -> bool:
    courier.due = 0.0
    return courier.turn()


def test_a_job_that_waited_too_long_for_its_cluster_is_submitted_again(tmp_path: Path) -> None:
    folder = ray_attempt(tmp_path, shared=True)
    courier = RayCourier(folder)
    api = Crowded(dict(courier.target))
    courier.api = api
    for turns in range(1, 4):
        assert not ray_turn(courier) and courier.status is not None
        assert courier.status.state == "pending" and len(api.records) == turns
        if turns < 3:
            api.fail("JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert not (folder / "exit.json").exists()
    # Once a person has stopped the run, none takes the place of one that waited too long.
    courier.stop = {"at": 1.0, "at_once": False, "asked": False}
    api.fail("JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert any(ray_turn(courier) for _ in range(UNSEEN_LOOKS)) and len(api.records) == 3
    assert json.loads((folder / "exit.json").read_text())["stop_requested"]


class Forgetful(JobsApi):
    """A head that was begun anew: it answers, and knows no job."""

    def call(self, *_: Any, **__: Any) -> HttpAnswer:
        return HttpAnswer(404, b"")


def test_a_job_that_its_cluster_has_forgotten_has_ended(tmp_path: Path) -> None:
    folder = ray_attempt(tmp_path)
    (folder / "far").mkdir()
    (folder / "submit.json").write_text(json.dumps({"token": "t", "at": 1.0}))
    (folder / "handle.json").write_text(json.dumps({"job": "gputui-a-1.1-t"}))
    for name, text in (("claim", "gputui-a-1.1-t"), ("started.json", "{}")):
        (folder / "far" / name).write_text(text)
    courier = RayCourier(folder)
    courier.api = Forgetful(dict(courier.target))
    for _ in range(UNSEEN_LOOKS):
        is_over = ray_turn(courier)
    record = json.loads((folder / "exit.json").read_text())
    assert is_over and record.get("ended_by") == "node_fail"
