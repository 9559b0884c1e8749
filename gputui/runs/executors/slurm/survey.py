"""`gputui targets check` of a Slurm cluster: each step with a deadline."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.courier import CommandResult, TargetShell, UnreachableError
from gputui.runs.executors.slurm.script import CONFIGURATION
from gputui.runs.executors.slurm.slurm_courier import LoginShell
from gputui.runs.executors.ssh.survey import DATE, environment_there, judge_clock


def survey(target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check the commands, the controller, the partition, free GPUs, a submission, the clock and the environment."""
    shell = LoginShell(target) if target.get("host") else TargetShell(CONFIGURATION)

    def ask(*argv: str) -> CommandResult:
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
        yield judge_clock(ask(*DATE), time.time())
        # The environment is on a file system that the nodes share.
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
        host, gres, gres_used = (line[start : start + 60].strip() for start in (0, 60, 120))
        if host in nodes or not re.match(r"(idle|mix|alloc|plnd|comp)", line[180:].strip()):
            continue
        nodes.add(host)
        total += gpus_in(gres)
        used += gpus_in(gres_used)
    where = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    return CheckResult("gpus", "pass" if total else "warn", f"{total - used} of {total} free on {where}")


def gpus_in(gres: str) -> int:
    """The number of GPUs in a list such as ``gpu:a100:4(S:0-1),gpu:2``."""
    return sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))


def _accepted(target: Mapping[str, Any], ask: Any) -> CheckResult:
    """Check that sbatch accepts a job with the target's partition, account and quality of service."""
    words = [f"--{key}={target[key]}" for key in ("partition", "account", "qos") if target.get(key)]
    done = ask("sbatch", "--test-only", "--time=1", *words, "--wrap=true")
    text = done.words.removeprefix("sbatch: ")
    return CheckResult("submission", "pass" if done.code == 0 else "fail", text, "see partition, account and qos")
