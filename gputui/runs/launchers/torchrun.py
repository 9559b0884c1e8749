"""torchrun: an elastic agent of PyTorch that starts the ranks of one machine and never restarts any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.runs.launchers.base import RANK_OUTPUT, Invocation, Launcher, Placement, Typed

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec


class Torchrun(Launcher):
    """Ranks over torch.distributed.run, each with its own logs and error file."""

    name = title = "torchrun"
    starts_ranks = True
    only_relays = True
    modules = (("torch.distributed.run", "torch>=2.6"),)
    typed = Typed(
        programs=("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        count=("--nproc-per-node", "--nproc_per_node"),
        flags=("--standalone", "--no-python", "--run-path"),
    )

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        node = placement.nodes[0]
        return (
            str(spec.python), "-m", "torch.distributed.run",
            f"--nnodes={len(placement.nodes)}", f"--nproc-per-node={node.ranks}", "--max-restarts=0",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={placement.endpoint}", f"--rdzv-id={invocation.name}",
            f"--local-addr={node.host}",
            f"--shutdown-timeout={max(1, round(spec.grace_seconds))}",
            f"--log-dir={invocation.folder}/ranks", "--redirects=3",
            *invocation.words,
        )  # fmt: skip

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        return {}

    def rank_output(self, ranks: int) -> str:
        return RANK_OUTPUT
