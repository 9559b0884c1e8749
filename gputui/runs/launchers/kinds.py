"""The launchers: torchrun, Accelerate, DeepSpeed, python, and any command."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from gputui.core.units import count_of
from gputui.runs.checks import CheckResult
from gputui.runs.launchers.base import OUTPUT, RANK_OUTPUT, Invocation, Launcher, Placement, Typed

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec


class Torchrun(Launcher):
    """Starts ranks by torch.distributed.run, each with its own logs and error file."""

    name = title = "torchrun"
    starts_ranks = True
    only_relays = True
    spans_nodes = True
    modules = (("torch.distributed.run", "torch>=2.6"),)
    typed = Typed(
        programs=("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        count=("--nproc-per-node", "--nproc_per_node"),
        flags=("--standalone", "--no-python", "--run-path"),
    )

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        node = placement.nodes[0]
        # On several nodes, c10d compares host names, which may resolve differently on each; static
        # does not.
        backend = "c10d" if len(placement.nodes) == 1 else "static"
        node_options = f"--local-addr={node.host}" if len(placement.nodes) == 1 else f"--node-rank={placement.number}"
        return (
            str(spec.python), "-m", "torch.distributed.run",
            f"--nnodes={len(placement.nodes)}", f"--nproc-per-node={node.ranks}", "--max-restarts=0",
            f"--rdzv-backend={backend}", f"--rdzv-endpoint={placement.endpoint}", f"--rdzv-id={invocation.name}",
            node_options,
            f"--log-dir={invocation.folder}/ranks", "--redirects=3",
            *invocation.argv,
        )  # fmt: skip

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        return {}

    def rank_output(self, ranks: int) -> str:
        return RANK_OUTPUT


class Accelerate(Launcher):
    """Starts ranks by accelerate.commands.launch; a single one has no separate log."""

    name = title = "accelerate"
    starts_ranks = True
    needs_port = True
    modules = (("accelerate.commands.launch", "accelerate"), ("torch.distributed.run", "torch>=2.6"))
    typed = Typed(
        programs=("accelerate", "accelerate.commands.launch"),
        subcommand="launch",
        count=("--num_processes", "--num-processes"),
        flags=("--multi_gpu", "--multi-gpu"),
        replaced=("--num_machines", "--num-machines", "--main_process_port", "--main-process-port"),
    )

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        several = ["--multi_gpu"] if placement.ranks > 1 else []
        # --gpu_ids: a configuration file could name GPUs that are not this attempt's.
        return (
            str(spec.python), "-m", "accelerate.commands.launch", *several,
            f"--num_processes={placement.ranks}", f"--num_machines={len(placement.nodes)}", "--gpu_ids=all",
            f"--main_process_port={placement.port}", "--max_restarts=0", f"--log_dir={invocation.folder}/ranks",
            *invocation.argv,
        )  # fmt: skip

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        # torchrun's agent reads this itself; accelerate has no option for it.
        return {"PET_REDIRECTS": "3"}

    def rank_output(self, ranks: int) -> str:
        if ranks > 1:
            return RANK_OUTPUT
        return OUTPUT


class Deepspeed(Launcher):
    """Starts ranks by deepspeed.launcher.launch: the ``deepspeed`` program takes GPUs by index
    only."""

    name = title = "deepspeed"
    starts_ranks = True
    needs_port = True
    modules = (("deepspeed.launcher.launch", "deepspeed"),)
    typed = Typed(
        programs=("deepspeed", "deepspeed.launcher.runner"),
        count=("--num_gpus",),
        replaced=("--num_nodes", "--master_addr", "--master_port"),
    )

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        # On the CPU the indices only count ranks.
        world = {node.host: list(node.gpus or map(str, range(node.ranks))) for node in placement.nodes}
        program = invocation.argv
        if program[0] == "-m":
            program = ("--module", *program[1:])
        return (
            str(spec.python), "-m", "deepspeed.launcher.launch",
            f"--world_info={base64.urlsafe_b64encode(json.dumps(world).encode()).decode('ascii')}",
            f"--master_addr={placement.nodes[0].host}", f"--master_port={placement.port}",
            *program,
        )  # fmt: skip

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        # Otherwise a CPU run would see the GPUs whose indices equal its ranks.
        on_cpu = {} if placement.nodes[0].gpus else {"DS_ACCELERATOR": "cpu"}
        return {**super().environment(placement, invocation), **on_cpu}

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        results = super().checks(spec)
        if spec.gpus.count and spec.nproc != spec.gpus.count:
            request = f"{count_of(spec.nproc, 'process')} on {count_of(spec.gpus.count, 'GPU')}"
            detail = f"{request}; {self.name} starts one for each GPU"
            results.append(CheckResult("processes", "fail", detail, "leave nproc out"))
        return results


class Python(Launcher):
    """Starts the script or module by the interpreter."""

    name = "python"

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        return (str(spec.python), *invocation.argv)


class Command(Launcher):
    """The profile's command, unchanged."""

    name = "command"
    takes_command = True

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        return invocation.argv
