"""Slurm: an attempt is one job. A runner submits it by sbatch and polls it by squeue, on a login
node that shares a file system with the nodes: this machine, or one over SSH.

In: an attempt's folder. Out: the files of the contract. Read first: jobs.py (what is submitted),
then slurm_runner.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.core.units import count_of
from gputui.runs.checks import CheckResult, graded
from gputui.runs.executors.base import RunnerExecutor
from gputui.runs.executors.commands import CommandResult, TargetShell, UnreachableError
from gputui.runs.executors.slurm.jobs import batch_script, nodes_of, sbatch_time
from gputui.runs.executors.slurm.nodes import FIRST_NODE, FIRST_PORT, NODE_RANK
from gputui.runs.executors.ssh import DATE, check_environment, judge_clock
from gputui.runs.executors.ssh.connection import LoginShell
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import Node, Placement

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.spec import RunSpec


class SlurmExecutor(RunnerExecutor):
    """Jobs of a Slurm cluster."""

    runner = Path(__file__).with_name("slurm_runner.py")

    def placement(self, spec: RunSpec) -> Placement:
        count = nodes_of(spec.target or {})
        if count == 1:
            return super().placement(spec)
        return Placement((Node(FIRST_NODE, (), spec.nproc),) * count, FIRST_PORT, NODE_RANK)

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        if nodes_of(spec.target or {}) > 1 and not LAUNCHERS[spec.launcher].spans_nodes:
            others = ", ".join(name for name, launcher in LAUNCHERS.items() if launcher.spans_nodes)
            text = f"launcher {spec.launcher} starts processes on one node only, and the target has nodes: more"
            return [CheckResult("launcher", "fail", text, f"use {others}, or nodes: 1")]
        return super().checks(spec)

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        return not target.get("host")

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:
        from gputui.runs.executors.ssh.ssh_runner import remove_run_folder

        if target.get("host"):
            remove_run_folder(folder, target)

    def preview_script(self, spec: RunSpec, launch: Launch) -> str:
        return batch_script(self.preview_plan(spec, launch), self.preview_folder(spec, launch), token="TOKEN")  # noqa: S106

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        """Check the commands, the controller, the partition, free GPUs, a submission, the clock and
        the environment."""
        from gputui.runs.executors.slurm.slurm_runner import SshSlurmRunner
        from gputui.runs.executors.ssh.rehearsal import rehearse_copy

        shell = LoginShell(target) if target.get("host") else TargetShell()

        def ask(*argv: str) -> CommandResult:
            return shell.call(argv, seconds=15.0)

        try:
            version = ask("sbatch", "--version")
            number = re.search(r"^slurm\S* \d\S*", version.output, re.M)
            if number is None:
                raise UnreachableError(f"sbatch: {version.words}")
            yield CheckResult("commands", "pass", number[0])
        except UnreachableError as error:
            yield CheckResult("commands", "fail", str(error), "log in to a node of the cluster, or load its module")
            return
        try:
            ping = ask("scontrol", "ping")
            is_up = re.search(r"^Slurmctld.* is UP\s*$", ping.output, re.M)
            text = is_up[0].strip() if is_up else ping.words
            yield graded("controller", text, "ask its admins", fails=not is_up)
            if not is_up:
                return
            listed = ask("scontrol", "show", "partition", "--oneliner")
            judged = judge_partitions(target, listed)
            yield judged or CheckResult("partition", "fail", listed.words, "ask its admins")
            free = _free(target, ask)
            yield free
            script = probe(target, has_gpus=free.status == "pass")
            test = shell.call(("sbatch", "--test-only"), script, 15.0)
            text = test.words.removeprefix("sbatch: ")
            yield graded("submission", text, "see what the target asks for", fails=test.code != 0)
            yield judge_clock(ask(*DATE).output, time.time())
            # The environment is on a file system that the nodes share.
            yield from check_environment(shell, target)
            if target.get("host"):
                yield rehearse_copy(target, SshSlurmRunner)
        except UnreachableError as error:
            yield CheckResult("controller", "fail", str(error), "try again, or ask its admins")


def probe(target: Mapping[str, Any], *, has_gpus: bool) -> str:
    """The script of a job that asks for all that the target says, with one GPU on each node if
    there are any."""
    asks = {"gpus": int(has_gpus or bool(target.get("gpu_type")))}
    plan = {"target": target, "run_id": "gputui-check", "attempt": 1, "argv": ["python3"], "asks": asks}
    return batch_script(plan, "/tmp", token="check")  # noqa: S106, S108 - nothing is submitted


def judge_partitions(target: Mapping[str, Any], done: CommandResult) -> CheckResult | None:
    """Compare the target with ``scontrol show partition --oneliner``; None if that lists no partition.

    sbatch accepts a time above the limit, and a partition that is down: such a job waits forever.
    """
    listed = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in done.output.splitlines()]
    partitions = {fields["PartitionName"]: fields for fields in listed if "PartitionName" in fields}
    if not partitions:
        return None
    defaults = [name for name, fields in partitions.items() if fields.get("Default") == "YES"]
    names = str(target["partition"]).split(",") if target.get("partition") else defaults
    if gone := [name for name in names if name not in partitions]:
        return CheckResult("partition", "fail", f"no {', '.join(gone)}", f"there are {', '.join(sorted(partitions))}")
    text = "; ".join(
        f"{name} is {partitions[name].get('State', '?')}, limit {partitions[name].get('MaxTime', '?')}"
        for name in names
    )
    usable = [partitions[name] for name in names if partitions[name].get("State", "UP") == "UP"]
    asked_minutes = minutes(sbatch_time(str(target.get("time") or "0"))) or 0
    fits = [fields for fields in usable if asked_minutes <= (minutes(fields.get("MaxTime", "")) or asked_minutes)]
    if usable and not fits:
        text += f"; time: {target['time']} is above it"
    return graded("partition", text, "see partition and time", fails=bool(names) and not fits)


def minutes(text: str) -> int | None:
    """Minutes of a time in Slurm's form, such as ``90``, ``4:00:00`` or ``1-12``; None without a
    limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, first, second, third = map(optional_int, match.groups())
    if days is not None or third is not None:
        return ((days or 0) * 24 + (first or 0)) * 60 + (second or 0)
    return first


def optional_int(text: str | None) -> int | None:
    if text is None:
        return None
    return int(text)


def _free(target: Mapping[str, Any], ask: Callable[..., CommandResult]) -> CheckResult:
    options = ["--noheader", "--Node", "--Format=NodeList:60,Gres:60,GresUsed:60,StateCompact:20"]
    if target.get("partition"):
        options.append(f"--partition={target['partition']}")
    done = ask("sinfo", *options)
    total = used = 0
    nodes = set()
    for line in done.output.splitlines():
        host, gres, gres_used = (line[start : start + 60].strip() for start in (0, 60, 120))
        if host in nodes or not re.match(r"(idle|mix|alloc|plnd|comp)", line[180:].strip()):
            continue
        nodes.add(host)
        total += gpus_in(gres)
        used += gpus_in(gres_used)
    return graded("gpus", f"{total - used} of {total} free on {count_of(len(nodes), 'node')}", warns=not total)


def gpus_in(gres: str) -> int:
    """The number of GPUs in a list such as ``gpu:a100:4(S:0-1),gpu:2``."""
    return sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))
