"""deepspeed: one rank per GPU by DeepSpeed's single-machine launcher, with one output for all ranks."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from gputui.runs.checks import CheckResult
from gputui.runs.launchers.base import Invocation, Launcher, Placement, Typed

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec


class Deepspeed(Launcher):
    """Starts ranks by deepspeed.launcher.launch, which passes ``--local_rank`` to the script.

    The ``deepspeed`` program accepts GPUs by index only, and otherwise picks them itself.
    """

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
        is_module = invocation.words[0] == "-m"
        return (
            str(spec.python), "-m", "deepspeed.launcher.launch",
            f"--world_info={base64.urlsafe_b64encode(json.dumps(world).encode()).decode('ascii')}",
            f"--master_addr={placement.nodes[0].host}", f"--master_port={placement.port}",
            *(("--module", *invocation.words[1:]) if is_module else invocation.words),
        )  # fmt: skip

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        # Otherwise a CPU run would see the GPUs whose indices equal its ranks.
        on_cpu = {} if placement.nodes[0].gpus else {"DS_ACCELERATOR": "cpu"}
        return {**super().environment(placement, invocation), **on_cpu}

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        found = super().checks(spec)
        if spec.gpus.count and spec.nproc != spec.gpus.count:
            detail = f"{spec.nproc} processes on {spec.gpus.count} GPUs; {self.name} starts one for each GPU"
            found.append(CheckResult("processes", "fail", detail, "leave nproc out"))
        return found
