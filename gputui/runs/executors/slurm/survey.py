"""`gputui targets check` of a Slurm cluster: each step with a deadline."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.courier import Called, TargetShell, UnreachableError
from gputui.runs.executors.slurm.script import CONFIGURATION
from gputui.runs.executors.slurm.slurm_courier import LoginShell
from gputui.runs.executors.ssh.survey import environment_there

SKEW_SECONDS = 30.0


def survey(target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Whether the commands are there, the controller answers, the partition and account are right, and what is free."""
    shell = LoginShell(target) if target.get("host") else TargetShell(CONFIGURATION)

    def ask(*argv: str) -> Called:
        return shell.call(argv, seconds=15.0)

    try:
        version = ask("sbatch", "--version")
        if version.code != 0:
            raise UnreachableError(f"sbatch: {version.words}")
        yield CheckResult("commands", "pass", version.output.strip())
    except UnreachableError as error:
        yield CheckResult("commands", "fail", str(error), "log in to a node of the cluster, or load its module")
        return
    try:
        ping = ask("scontrol", "ping")
        is_up = "UP" in ping.output
        yield CheckResult(
            "controller", "pass" if is_up else "fail", ping.output.strip() or ping.words, "ask its admins"
        )
        if not is_up:
            return
        yield _partition(target, ask)
        yield _free(target, ask)
        yield _accepted(target, ask)
        yield _clock(ask)
        # The environment lies on the files that nodes share.
        yield from environment_there(shell, target)
    except UnreachableError as error:
        yield CheckResult("controller", "fail", str(error), "try again, or ask its admins")


def _partition(target: Mapping[str, Any], ask: Any) -> CheckResult:
    name = target.get("partition")
    if name is None:
        return CheckResult("partition", "skip", "the cluster's default")
    done = ask("scontrol", "show", "partition", "--oneliner", name.partition(",")[0])
    if done.code != 0:
        listed = ask("sinfo", "--noheader", "--format=%R").output.split()
        return CheckResult("partition", "fail", done.words, f"there are {', '.join(sorted(set(listed)))}")
    limit = re.search(r"MaxTime=(\S+)", done.output)
    state = re.search(r"State=(\S+)", done.output)
    text = f"{name} is {state[1] if state else '?'}, limit {limit[1] if limit else '?'}"
    return CheckResult("partition", "pass" if state is None or state[1] == "UP" else "warn", text)


def _free(target: Mapping[str, Any], ask: Any) -> CheckResult:
    words = ["--noheader", "--Node", "--Format=NodeHost:60,Gres:60,GresUsed:60,StateCompact:20"]
    if target.get("partition"):
        words.append(f"--partition={target['partition']}")
    done = ask("sinfo", *words)
    total = used = 0
    nodes = set()
    for line in done.output.splitlines():
        host, gres, taken = (line[at : at + 60].strip() for at in (0, 60, 120))
        if host in nodes or not re.match(r"(idle|mix|alloc|plnd|comp)", line[180:].strip()):
            continue
        nodes.add(host)
        total += gpus_in(gres)
        used += gpus_in(taken)
    where = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    return CheckResult("gpus", "pass" if total else "warn", f"{total - used} of {total} free on {where}")


def gpus_in(gres: str) -> int:
    """How many GPUs a list such as ``gpu:a100:4(S:0-1),gpu:2`` has."""
    return sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))


def _accepted(target: Mapping[str, Any], ask: Any) -> CheckResult:
    """Whether sbatch would take a job with the target's partition, account and quality of service."""
    words = [f"--{key}={target[key]}" for key in ("partition", "account", "qos") if target.get(key)]
    done = ask("sbatch", "--test-only", "--time=1", *words, "--wrap=true")
    text = done.words.removeprefix("sbatch: ")
    return CheckResult("submission", "pass" if done.code == 0 else "fail", text, "see partition, account and qos")


def _clock(ask: Any) -> CheckResult:
    done = ask("date", "+%s")
    skew = abs(time.time() - float(done.output.strip() or 0))
    return CheckResult("clock", "pass" if skew < SKEW_SECONDS else "warn", f"{skew:.0f} s from this machine's")
