"""torchrun: PyTorch's elastic agent, which starts the ranks of one machine; its restarts are turned off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.runs.launchers.base import RANK_OUTPUT, Invocation, Launcher, Placement, Typed

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
        # On several nodes, c10d compares host names, which may resolve differently on each; static does not.
        backend = "c10d" if len(placement.nodes) == 1 else "static"
        own = f"--local-addr={node.host}" if len(placement.nodes) == 1 else f"--node-rank={placement.number}"
        return (
            str(spec.python), "-m", "torch.distributed.run",
            f"--nnodes={len(placement.nodes)}", f"--nproc-per-node={node.ranks}", "--max-restarts=0",
            f"--rdzv-backend={backend}", f"--rdzv-endpoint={placement.endpoint}", f"--rdzv-id={invocation.name}",
            own,
            f"--log-dir={invocation.folder}/ranks", "--redirects=3",
            *invocation.words,
        )  # fmt: skip

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        return {}

    def rank_output(self, ranks: int) -> str:
        return RANK_OUTPUT
