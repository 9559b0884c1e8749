"""accelerate: ``accelerate launch``, which sets the environment of `Accelerator` and starts ranks by torchrun's agent.

Precision, FSDP and DeepSpeed are set in accelerate's own configuration file, which ``accelerate config`` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.runs.launchers.base import OUTPUT, RANK_OUTPUT, Invocation, Launcher, Placement, Typed

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec


class Accelerate(Launcher):
    """Starts ranks by accelerate.commands.launch; a single one has no torchrun agent and so no separate log."""

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
        # --gpu_ids: a configuration file could name GPUs that are not this attempt's.
        return (
            str(spec.python), "-m", "accelerate.commands.launch",
            *(("--multi_gpu",) if placement.ranks > 1 else ()),
            f"--num_processes={placement.ranks}", f"--num_machines={len(placement.nodes)}", "--gpu_ids=all",
            f"--main_process_port={placement.port}", "--max_restarts=0", f"--log_dir={invocation.folder}/ranks",
            *invocation.words,
        )  # fmt: skip

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        # torchrun's agent reads this itself; accelerate has no option for it.
        return {"PET_REDIRECTS": "3"}

    def rank_output(self, ranks: int) -> str:
        return RANK_OUTPUT if ranks > 1 else OUTPUT
