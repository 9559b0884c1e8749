"""Finding the largest micro batch that fits, by training with some and forgetting it again."""

from __future__ import annotations

import torch

from trainer.batch import Probe, find_batch
from trainer.checkpoints.snapshot import HostBuffers
from trainer.precision import forget_compiled
from trainer.session import PhaseSession
from trainer.stepper import Stepper


def largest_batch(session: PhaseSession, stepper: Stepper) -> int:
    """The largest micro batch that fits on every rank (collective). The session is afterwards as it was before.

    Raises TrainerError if not even one sample fits.
    """
    before = HostBuffers().take(session.state(), copy=True)
    before.wait()
    state = session.world.broadcast(before.state)
    accumulation = session.grad_accum
    # The optimizer's state, which the first step makes, must be there when memory is measured.
    _probe(session, stepper, 1)
    found = find_batch(lambda size: _probe(session, stepper, size), session.settings.max_batch_size, session.world)
    session.strategy.load_optimizer_state({})
    session.load(state)
    session.grad_accum = accumulation
    forget_compiled(session.settings)
    return found


def _probe(session: PhaseSession, stepper: Stepper, batch_size: int) -> Probe | None:
    """One step with this batch, and two micro batches where steps have several; None if a rank ran out of memory."""
    device, strategy = session.world.device, session.strategy
    session.set_batch(batch_size, min(session.grad_accum, 2))
    forget_compiled(session.settings)
    base = _begin_measuring(device)
    total = stepper.gradients(session.progress.step + 1, survive=strategy.can_settle)
    if session.world.vote(total is None)[0]:
        stepper.renew()
        return None
    stepper.unscale()
    stepper.update()
    if device.type != "cuda":
        # There is no telling what a process on the CPU may still take: only failing tells.
        return Probe(peak_bytes=0, total_bytes=1)
    torch.cuda.synchronize(device)
    free, everything = torch.cuda.mem_get_info(device)
    mine = torch.cuda.memory_reserved(device)
    return Probe(
        peak_bytes=torch.cuda.max_memory_reserved(device),
        total_bytes=min(free + mine, int(everything * session.settings.memory_fraction)),
        base_bytes=base,
    )


def _begin_measuring(device: torch.device) -> int:
    """Gives back what is not in use; what remains in use, in bytes (0 on the CPU)."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_reserved(device)
