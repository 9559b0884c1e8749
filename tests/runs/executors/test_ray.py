"""Runs on a real Ray head, from launch to end; the test makes and ends it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.executors import far
from gputui.runs.executors.courier import UNSEEN_LOOKS
from gputui.runs.executors.ray.jobs_api import CALL_SECONDS, HttpAnswer, JobsApi
from gputui.runs.executors.ray.ray_courier import RayCourier
from tests.conftest import wait_until
from tests.machine import Machine
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
        self.target()

    def target(self, **options: Any) -> None:
        self.set_target(python=sys.executable, folder=str(self.there), **self.cluster.target(**options))

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
def test_a_removed_run_is_removed_there_too(lab: Lab) -> None:
    run_id = lab.launch("steps=3")
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    there = lab.run_dir(run_id)
    assert there.is_relative_to(lab.there)
    lab.machine.gputui("rm", run_id)
    wait_until(lambda: not there.exists(), WAIT_SECONDS, "its removal there")


@pytest.mark.long
def test_with_shared_files_nothing_is_sent_and_checkpoints_are_here(lab: Lab) -> None:
    lab.target(shared=True)
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 15)
    assert not lab.there.exists() and not (lab.run_dir(run_id) / "code.zip").exists()
    assert list((lab.run_dir(run_id) / "checkpoints").glob("step_*.pt"))
    lab.finish(run_id, lab.run_dir(run_id))


@pytest.mark.long
@pytest.mark.parametrize("shared", [False, True])
def test_a_stop_saves(lab: Lab, shared: bool) -> None:
    lab.target(shared=shared)
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    lab.machine.gputui("stop", run_id)
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    last = lab.steps(run_id)[-1]
    assert (lab.run_dir(run_id) / "checkpoints" / f"step_{last + 1:06d}.pt").is_file()
    assert lab.shown(run_id)["attempts"][0]["incident"] is None


@pytest.mark.long
def test_one_that_another_person_stops_had_time_to_save_and_is_no_failure(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    (job,) = lab.jobs(run_id)
    lab.cluster.api().stop(job)
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    assert lab.shown(run_id)["attempts"][0]["incident"]["kind"] == "stopped_outside"
    last = lab.steps(run_id)[-1]
    assert (lab.run_dir(run_id) / "checkpoints" / f"step_{last + 1:06d}.pt").is_file()


@pytest.mark.long
def test_a_script_that_fails_goes_on_from_its_checkpoint_there_with_the_same_code(lab: Lab) -> None:
    run_id = lab.launch("steps=60", "fail_at=25", "seconds=0.05")
    wait_until(lambda: (lab.machine.workspace.run_dir(run_id) / "code.zip").exists(), WAIT_SECONDS, "the code")
    (lab.code / "steps.py").write_text("raise SystemExit('edited after the launch')")
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    first, second = lab.shown(run_id)["attempts"]
    assert first["incident"]["kind"] == "user_exception" and second["state"] == "succeeded"
    assert lab.steps(run_id) == [*range(26), *range(20, 60)]


@pytest.mark.long
def test_one_that_waits_for_gpus_says_so_and_does_nothing_once_it_was_stopped(lab: Lab) -> None:
    first = lab.launch("steps=100000", gpus=2)
    lab.wait_for_step(first, 1)
    run_id = lab.launch("steps=100000", gpus=2)
    place = wait_until(
        lambda: found if (found := lab.placement(run_id)).get("state") == "pending" else None, WAIT_SECONDS, "waiting"
    )
    assert place["reason"] and lab.machine.state(run_id) == "starting"
    lab.machine.gputui("stop", run_id)
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    lab.finish(first, lab.run_dir(first))
    (job,) = lab.jobs(run_id)
    wait_until(lambda: (lab.cluster.api().job(job) or {})["status"] == "STOPPED", WAIT_SECONDS, "its end there")
    assert not list(lab.there.glob(f"*/{run_id}/metrics.jsonl"))


@pytest.mark.long
def test_a_node_whose_processes_are_killed_is_a_failed_node(lab: Lab) -> None:
    run_id = lab.launch("steps=100000", "seconds=0.05")
    lab.wait_for_step(run_id, 12)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        # The shim too, before it could write how the command ended. Another worker's run may have the same name.
        if str(lab.there).encode() in words or f"GPUTUI_RUN_DIR={lab.there}/".encode() in environment:
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(lab.jobs(run_id)) == 2, WAIT_SECONDS, "another job")
    assert lab.shown(run_id)["attempts"][0]["incident"]["kind"] == "node_fail"
    before = lab.steps(run_id)[-1]
    wait_until(lambda: lab.machine.steps(run_id)[-1] >= (2, before), WAIT_SECONDS, "the second attempt")
    (lab.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    assert sorted(set(lab.steps(run_id))) == list(range(max(lab.steps(run_id)) + 1))


@pytest.mark.long
def test_a_token_that_expired_fails_nothing(lab: Lab, cluster: RayCluster) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    good = cluster.token_file.read_text()
    cluster.token_file.write_text("f" * 64)
    try:
        problem = wait_until(lambda: lab.placement(run_id).get("problem"), WAIT_SECONDS, "a problem")
        assert "token" in problem and lab.machine.state(run_id) == "running"
        done = lab.machine.call("targets", "check", "lab", "--json")
        assert done.returncode == 3 and json.loads(done.stdout)[0]["status"] == "fail"
    finally:
        cluster.token_file.write_text(good)
    known = len(lab.steps(run_id))
    wait_until(lambda: lab.placement(run_id).get("problem") is None, WAIT_SECONDS, "an answer")
    lab.wait_for_step(run_id, known + 5)
    lab.finish(run_id, lab.run_dir(run_id))


@pytest.mark.long
def test_couriers_killed_one_after_another_leave_one_job_and_every_line_once(lab: Lab) -> None:
    run_id = lab.launch("steps=100000", "seconds=0.01")
    for turn in range(5):
        pid = wait_until(lambda: lab.courier(run_id), WAIT_SECONDS, "a courier")
        if turn:
            lab.wait_for_step(run_id, turn * 30)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: lab.courier(run_id) not in (pid, None), WAIT_SECONDS, "another courier")
    lab.wait_for_step(run_id, 300)
    lab.finish(run_id, lab.run_dir(run_id))
    assert len(lab.jobs(run_id)) == 1 and len(lab.shown(run_id)["attempts"]) == 1


@pytest.mark.long
def test_metrics_that_are_cut_off_there_are_followed_from_their_new_beginning(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 300)
    lab.cut_off_metrics(run_id, lab.run_dir(run_id))


@pytest.mark.long
def test_the_dry_run_prints_the_request_that_is_made(lab: Lab) -> None:
    lab.target(setup=["true cuda"], resources={"CPU": 0.5})
    text = lab.machine.gputui("run", lab.profile, "--on", "lab", "--gpus", "2", "--dry-run")
    head, _, rest = text.partition("\n")
    request, end = json.JSONDecoder().raw_decode(rest)
    assert head == f"POST {lab.cluster.address}/api/jobs/" and "\ntrue cuda\n" in rest[end:]
    lab.target(setup=["true cuda"], cpus=1)
    run_id = lab.launch("steps=3")
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    sent = json.loads((lab.machine.workspace.run_dir(run_id) / "attempts" / "1" / "far" / "request.json").read_text())
    assert request["entrypoint"] == sent["entrypoint"] and request["entrypoint_num_gpus"] == 2.0
    assert request["runtime_env"]["env_vars"] == sent["runtime_env"]["env_vars"]
    assert request.keys() - sent.keys() == {"entrypoint_resources"} and sent["entrypoint_num_gpus"] == 0.0


@pytest.mark.long
def test_what_the_cluster_refuses_or_cannot_set_up_is_said(lab: Lab) -> None:
    lab.target(setup=["echo no such module >&2", "exit 3"])
    run_id = lab.launch()
    lab.machine.wait_for(run_id, "failed", timeout=WAIT_SECONDS)
    incident = lab.shown(run_id)["attempts"][0]["incident"]
    assert incident["kind"] == "launch_failed" and "no such module" in json.dumps(incident)


@pytest.mark.long
def test_a_check_tells_what_is_there(lab: Lab) -> None:
    def check() -> dict[str, dict[str, str]] | None:
        results = {one["name"]: one for one in lab.machine.json("targets", "check", "lab")}
        # The head knows some seconds later what an earlier job gave back; a busy machine misses the probe's deadline.
        is_free = results["gpus"]["detail"].startswith("2 of 2 ")
        return results if is_free and "job" not in results else None

    results = wait_until(check, WAIT_SECONDS, "free GPUs and an answer of the probe")
    assert results.keys() == {"connection", "clock", "jobs", "gpus", "python", "torch"}
    assert {one["status"] for name, one in results.items() if name != "torch"} == {"pass"}


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ({"kind": "ray"}, "lab"),
        ({"kind": "ray", "address": "head:8265"}, "lab.address"),
        ({"kind": "ray", "address": "file:///etc/passwd"}, "lab.address"),
        ({"kind": "ray", "address": "http://head:8265", "cpus": -1}, "lab.cpus"),
    ],
)
def test_what_is_wrong_with_a_target_is_said_with_its_place(
    machine: Machine, target: dict[str, Any], place: str
) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": target}))
    said = machine.gputui("run", machine.profile(), "--on", "lab", code=2)
    assert f"{place}: " in said and len(said.splitlines()) == 1


class Crowded(JobsApi):
    """A cluster without room, which fails each job that has waited for its time; the third may run."""

    def __init__(self, target: dict[str, Any]) -> None:
        super().__init__(target)
        self.records: dict[str, dict[str, Any]] = {}
        self.has_logs = True

    def call(
        self, method: str, path: str, given: Any = None, seconds: float = CALL_SECONDS, **query: str | int
    ) -> HttpAnswer:
        name = path.removeprefix("/api/jobs/")
        if name.endswith("/logs"):
            return HttpAnswer(200 if self.has_logs else 500, b"{}", None)
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
        if turns == 2:
            # Whoever replaces a courier goes on with the newest.
            courier = RayCourier(folder)
            courier.api = api
            assert not ray_turn(courier) and len(api.records) == turns
        if turns < 3:
            api.fail("JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert not (folder / "exit.json").exists()
    # Once a person has stopped the run, none takes the place of one that waited too long.
    courier.stop = {"at": 1.0, "at_once": False, "asked": False}
    api.fail("JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert any(ray_turn(courier) for _ in range(UNSEEN_LOOKS)) and len(api.records) == 3
    assert json.loads((folder / "exit.json").read_text())["stop_requested"]


def test_a_node_that_is_gone_with_its_log_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ray_attempt(tmp_path)
    courier = RayCourier(folder)
    api = Crowded(dict(courier.target))
    courier.api, api.has_logs = api, False
    monkeypatch.setattr(courier, "package", lambda _: "gcs://package")
    monkeypatch.setattr(courier, "send", lambda: courier.far.mkdir())
    assert not ray_turn(courier)
    for name, text in (("claim", *api.records), ("started.json", "{}")):
        (courier.far / name).write_text(text)
    # A cluster that only cannot say has not failed the job.
    api.fail("JOB_ENTRYPOINT_COMMAND_ERROR")
    assert not any(ray_turn(courier) for _ in range(UNSEEN_LOOKS + 1)) and courier.problem is not None
    api.fail("JOB_SUPERVISOR_ACTOR_DIED")
    assert any(ray_turn(courier) for _ in range(UNSEEN_LOOKS))
    assert json.loads((folder / "exit.json").read_text())["ended_by"] == "node_fail"


class Forgetful(JobsApi):
    """A head that was begun anew: it answers, and knows no job."""

    def call(
        self, method: str, path: str, given: Any = None, seconds: float = CALL_SECONDS, **query: str | int
    ) -> HttpAnswer:
        return HttpAnswer(404, b"", None)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_job_that_its_cluster_has_forgotten_has_ended(tmp_path: Path, has_begun: bool) -> None:
    """Also for a courier that never saw the job."""
    folder = ray_attempt(tmp_path)
    (folder / "far").mkdir()
    (folder / "submit.json").write_text(json.dumps({"token": "t", "at": 1.0}))
    (folder / "handle.json").write_text(json.dumps({"job": "gputui-a-1.1-t"}))
    if has_begun:
        for name, text in (("claim", "gputui-a-1.1-t"), ("started.json", "{}")):
            (folder / "far" / name).write_text(text)
    courier = RayCourier(folder)
    courier.api = Forgetful(dict(courier.target))
    for _ in range(UNSEEN_LOOKS):
        is_over = ray_turn(courier)
    record = json.loads((folder / "exit.json").read_text())
    assert is_over and record.get("ended_by") == ("node_fail" if has_begun else None)
    assert (record.get("error") is None) == has_begun


def test_an_empty_message_of_the_cluster_is_no_reason(tmp_path: Path) -> None:
    status = RayCourier(ray_attempt(tmp_path)).state_of("job", {"status": "FAILED", "message": " \n"})
    assert (status.state, status.reason) == ("ended", None)


def test_a_line_of_a_stream_is_known_again_and_a_damaged_one_is_left_out() -> None:
    line = far.frame({"number": 1, "grown": {}, "whole": {"claim": "é\n"}})
    assert "\n" not in line and line.isascii() and far.framed(line) == {
        "number": 1, "grown": {}, "whole": {"claim": "é\n"},
    }  # fmt: skip
    assert far.framed(line[:-1]) is None and far.framed("1" + line) is None and far.framed("epoch 1") is None
