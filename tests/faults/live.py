"""A drill for every kind of the catalogue: provoked in a living run with a real agent and real
processes. Where a machine without GPUs cannot make it real, simulated GPUs or recorded texts do."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gputui.runs.identity import identify
from gputui.runs.logs import rank_logs
from gputui.runs.spec import Scalar
from tests.conftest import wait_until
from tests.faults.drills import DRILLS
from tests.faults.jobs import impatient_agent, leaks, meets, ranks, write_scenario
from tests.machines import Machine

How = Literal["real", "simulated GPU", "recorded text", "recorded exit"]

# Long enough for an agent that starts on a crowded machine.
SECONDS = 60.0
FORMER_BOOT = "00000000-1111-2222-3333-444444444444"
_BY_KIND = {drill.kind: drill for drill in DRILLS}


# As the standard policy, which waits 60 and 30 s, but with short waits.
_SHORT_WAITS = "policy: standard, ladders: {gpu_busy: [{wait: 1}], lease_conflict: [{wait: 1}]}"
# A ladder so long that the lack of progress ends the run first.
_LONG_LADDER = "policy: standard, ladders: {user_exception: [restart, restart, restart, restart, restart]}"
_NO_RECORD = {"signal": None, "started_at": 1.0, "stop_requested": False, "error": None}
REPORTED = ("reported",)
"""The answer to a kind that ends nothing: one observation or alert, and the run continues."""


@dataclass(frozen=True)
class Provoked:
    """The run that met the trouble; ``at`` is when (unix seconds), None where its script says so in failed-at."""

    run_id: str
    at: float | None = None


@dataclass(frozen=True)
class Live:
    """One kind. ``actions`` are those that the standard policy must take: ``stop`` to give up, ``reported`` where
    the run continues. ``changed`` are parameters of the next attempt; ``resumes``: it begins with a checkpoint."""

    kind: str
    how: How
    provoke: Callable[[Machine], Provoked]
    actions: tuple[str, ...]
    changed: Mapping[str, Scalar] = field(default_factory=dict)
    resumes: bool = True


# --- ways to provoke ---------------------------------------------------------------------------------------------


def start(machine: Machine, profile: str, meet: str) -> str:
    machine.gputui("run", profile, "--set", f"meet={meet}")
    return "job-1"


def met(failure: str, recovery: str = "policy: standard") -> Callable[[Machine], Provoked]:
    """A failure that the script makes itself."""
    return lambda machine: Provoked(start(machine, meets(machine, recovery), failure))


def played(
    kind: str, code: int = 1, failure: str = "recording", recovery: str = "policy: standard"
) -> Callable[[Machine], Provoked]:
    """The process prints what the failing rank of the drill's recording printed, and ends with this code."""

    def provoke(machine: Machine) -> Provoked:
        drill = _BY_KIND[kind]
        folder = machine.folder / "recorded"
        drill.evidence_in(folder)
        texts = {(log.rank, log.stream): log.path.read_text() for log in rank_logs(folder)}
        of_rank = "".join(text for (rank, _), text in texts.items() if rank == drill.rank)
        text = of_rank or "".join(texts.values())
        (machine.folder / "recording.json").write_text(json.dumps({"text": text, "code": code}))
        return Provoked(start(machine, meets(machine, recovery), failure))

    return provoke


def hold(machine: Machine, recovery: str = "policy: standard", gpus: int = 0) -> Path:
    """A run that waits at step 15; its folder."""
    run_id = start(machine, meets(machine, recovery, gpus=gpus), "held")
    folder = machine.workspace.run_dir(run_id)
    wait_until((folder / "held").exists, SECONDS, "step 15")
    wait_until(lambda: (1, 15) in machine.steps(run_id), SECONDS, "step 15 in the store")
    return folder


def driver_says(*faults: str, then: str | None) -> Callable[[Machine], Provoked]:
    """A simulated GPU of two fails, and then the script does, or waits in vain where ``then`` is None."""

    def provoke(machine: Machine) -> Provoked:
        write_scenario(machine, 2)
        folder = hold(machine, gpus=1)
        at = time.time()
        write_scenario(machine, 2, *faults)
        if then is not None:
            wait_until(lambda: machine.rows("SELECT 1 FROM gpu_events WHERE event = 'xid'"), SECONDS, "the XID")
            (folder / "go").write_text(then)
        return Provoked(folder.name, at)

    return provoke


def crowd(machine: Machine) -> Provoked:
    """Of two trials that share the one GPU the second runs out of its memory; then the first one ends."""
    write_scenario(machine, 1)
    profile = meets(machine, gpus=1)
    study = machine.folder / "crowd.yaml"
    study.write_text(
        f"profile: {profile}\nparams: {{meet: held}}\nspace: {{num_workers: [4, 5]}}\nobjective: {{metric: loss}}\n"
        "sampler: grid\ntrials_per_gpu: 2\n"
    )
    machine.gputui("study", "run", str(study))

    def held() -> list[Path]:
        rows = machine.rows("SELECT run_id FROM runs WHERE trial NOTNULL ORDER BY trial")
        folders = [machine.workspace.run_dir(run_id) for (run_id,) in rows]
        return [folder for folder in folders if (folder / "held").exists()]

    wait_until(lambda: len(held()) == 2, SECONDS, "both trials at step 15")
    first, second = held()
    wait_until(lambda: (1, 15) in machine.steps(second.name), SECONDS, "step 15 in the store")
    at = time.time()
    (second / "go").write_text("oom")
    wait_until(lambda: machine.rows("SELECT 1 FROM incidents"), SECONDS, "the incident")
    (first / "go").write_text("on")
    return Provoked(second.name, at)


def overheat(machine: Machine) -> Provoked:
    machine.workspace.alerts.write_text("gpu_throttled: {for: 0}\n")
    provoked = driver_says("{kind: throttle, gpu: 0, reason: hardware thermal}", then=None)(machine)
    wait_until(lambda: heat_alert_at(machine), SECONDS, "the warning")
    (machine.workspace.run_dir(provoked.run_id) / "go").write_text("on")
    return provoked


def heat_alert_at(machine: Machine) -> float | None:
    rows = machine.rows("SELECT min(raised_at) FROM alerts WHERE rule = 'gpu_throttled'")
    return None if rows[0][0] is None else float(rows[0][0])


def stop_rank(machine: Machine) -> Provoked:
    """SIGSTOP for one rank of two."""
    machine.gputui("run", ranks(machine, steps=1000, hang_after=10, backoff=""))
    wait_until(lambda: len(machine.steps("ranks-1")) > 14, SECONDS, "some steps")
    os.kill(machine.ranks("ranks-1")[1], signal.SIGSTOP)
    return Provoked("ranks-1", time.time())


def leak(machine: Machine) -> Provoked:
    """A script that keeps 2 MiB of each step."""
    impatient_agent(machine)
    machine.gputui("run", leaks(machine, "leaks", "all"))
    return Provoked("leaks-1")


def of_ranks(fault: str, steps: int, seconds: float, hang_after: int) -> Callable[[Machine], Provoked]:
    """Two ranks under torchrun with a fault."""

    def provoke(machine: Machine) -> Provoked:
        profile = ranks(machine, fault=fault, steps=steps, seconds=seconds, hang_after=hang_after, backoff="")
        machine.gputui("run", profile)
        return Provoked("ranks-1")

    return provoke


def lose_all(machine: Machine, run_id: str) -> None:
    """Agent, shim and run are killed at once: no process, no exit record."""
    shim = machine.shim(run_id)
    machine.kill_agent()
    os.kill(shim.pid, signal.SIGKILL)
    for process in machine.marked(run_id):
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not machine.marked(run_id), what="the end of every process")
    assert not (machine.workspace.run_dir(run_id) / "attempts/1/exit.json").exists()


def reboot(machine: Machine, run_id: str, pid: int) -> None:
    """Leave what a power cut leaves: no process, no exit record, and rows with the PIDs of another
    boot. ``pid`` is a process of this boot that has the PID of the former one's shim."""
    lose_all(machine, run_id)
    now = identify(pid)
    assert now is not None
    with closing(sqlite3.connect(machine.workspace.database)) as connection:
        values = (pid, now.start_ticks, FORMER_BOOT)
        connection.execute("UPDATE attempts SET shim_pid = ?, shim_start_ticks = ?, boot_id = ?", values)
        connection.execute("UPDATE agent SET boot_id = ?", (FORMER_BOOT,))
        connection.commit()
    started = machine.workspace.run_dir(run_id) / "attempts/1/started.json"
    text = started.read_text().replace(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), FORMER_BOOT)
    started.write_text(text)


def rebooted(machine: Machine) -> Provoked:
    folder = hold(machine)
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            reboot(machine, folder.name, bystander.pid)
            at = time.time()
            machine.gputui("agent", "start")
            machine.wait_for(folder.name, "failed")
        finally:
            bystander.kill()
    return Provoked(folder.name, at)


def exit_recorded(record: Mapping[str, object], recovery: str = "policy: standard") -> Callable[[Machine], Provoked]:
    """An agent finds this exit record when it starts: what a shim leaves cannot always be provoked."""

    def provoke(machine: Machine) -> Provoked:
        folder = hold(machine, recovery)
        lose_all(machine, folder.name)
        (folder / "attempts/1/exit.json").write_text(json.dumps(record))
        at = time.time()
        machine.gputui("agent", "start")
        return Provoked(folder.name, at)

    return provoke


def lose_interpreter(machine: Machine) -> Provoked:
    """The first attempt fails and takes its interpreter along, so that the second cannot be started."""
    interpreter = machine.folder / "python"
    interpreter.symlink_to(sys.executable)
    profile = Path(meets(machine, more=f"env: {{INTERPRETER: {interpreter}}}"))
    profile.write_text(profile.read_text().replace(f"python: {sys.executable}", f"python: {interpreter}"))
    run_id = start(machine, str(profile), "lost interpreter")
    wait_until(lambda: machine.rows("SELECT 1 FROM attempts WHERE number = 2"), SECONDS, "the second attempt")
    return Provoked(run_id, machine.rows("SELECT created_at FROM attempts WHERE number = 2")[0][0])


def _live(
    kind: str, how: How, provoke: Callable[[Machine], Provoked], actions: tuple[str, ...] | None = None, **more: bool
) -> Live:
    """Adjust a drill to this machine."""
    drill = _BY_KIND[kind]
    expected = actions or (drill.actions if drill.verdict == "retry" else ("stop",))
    resumes = more.get("resumes", expected not in (("stop",), REPORTED))
    return Live(kind, how, provoke, actions=expected, changed=drill.changed, resumes=resumes)


def _texts(*kinds: str, **codes: int) -> list[Live]:
    return [_live(kind, "recorded text", played(kind, codes.get(kind, 1))) for kind in (*kinds, *codes)]


LIVE: dict[str, Live] = {
    live.kind: live
    for live in (
        *(
            _live(kind, "real", met(kind))
            for kind in (
                *("host_oom", "killed", "segfault", "user_exception", "nonzero_exit", "stopped_outside", "shim_lost"),
                *("import_error", "config_error", "resource_limit", "disk_full"),
            )
        ),
        # The launcher of these scripts takes no port, so that another one cannot be given to them.
        _live("port_in_use", "real", met("port_in_use"), ("wait",)),
        _live("rendezvous", "recorded text", played("rendezvous"), ("restart",)),
        _live("rank_left_early", "real", of_ranks("leave", 40, 0.0, 5)),
        _live("memory_leak", "real", leak),
        _live("hang", "real", stop_rank),
        _live("straggler", "real", of_ranks("slow", 20, 0.25, 60), REPORTED),
        _live("nan_loss", "real", met("written nan")),
        _live("loss_spike", "real", met("written jump"), REPORTED),
        _live("interrupted", "real", rebooted),
        _live("launch_failed", "real", lose_interpreter),
        _live("shared_gpu_oom", "simulated GPU", crowd),
        _live("overheating", "simulated GPU", overheat, REPORTED),
        _live("ecc", "simulated GPU", driver_says("{kind: xid, gpu: 0, code: 95}", then="fail"), ("exclude_gpu",)),
        _live("nvlink_error", "simulated GPU", driver_says("{kind: xid, gpu: 0, code: 74}", then="fail")),
        _live("illegal_access", "simulated GPU", driver_says("{kind: xid, gpu: 0, code: 31}", then="fail")),
        _live(
            "gpu_lost",
            "simulated GPU",
            driver_says("{kind: lost, gpu: 0}", "{kind: xid, gpu: 0, code: 79}", then=None),
            ("exclude_gpu",),
        ),
        *_texts(
            *("cuda_oom", "shm_full", "nccl_error", "peer_lost", "incompatible_checkpoint", "bad_sample"),
            *("driver_mismatch", "cuda_init", "dataloader_killed", "dataloader_stall", "read_only_fs"),
            nccl_timeout=-6,
        ),
        _live("gpu_busy", "recorded text", played("gpu_busy", recovery=_SHORT_WAITS)),
        _live("corrupt_checkpoint", "recorded text", played("corrupt_checkpoint", failure="a bad checkpoint")),
        _live(
            "lease_conflict",
            "recorded exit",
            exit_recorded(
                {**_NO_RECORD, "code": None, "survivors": [], "lease_conflict": ["GPU-1.lock"]}, _SHORT_WAITS
            ),
        ),
        _live("unkillable", "recorded exit", exit_recorded({**_NO_RECORD, "code": None, "survivors": [4242]})),
        *(
            _live(kind, "recorded exit", exit_recorded({**_NO_RECORD, "code": None, "survivors": [], "ended_by": kind}))
            for kind in ("preempted", "time_limit", "node_fail")
        ),
        _live("unknown", "recorded exit", exit_recorded({**_NO_RECORD, "code": None, "survivors": []})),
        Live("crash_loop", "real", met("a loop", _LONG_LADDER), ("stop",), resumes=False),
    )
}
"""Every kind of incident by its name."""
