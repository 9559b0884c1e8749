"""--batch-size auto: trains trial steps to find the largest micro batch that fits, then restores the session."""

from __future__ import annotations

import torch

from trainer.batch import Probe, find_batch
from trainer.checkpoints import parts_on_host, shared_state
from trainer.precision import forget_compiled
from trainer.session import PhaseSession
from trainer.stepper import Stepper


def largest_batch(session: PhaseSession, stepper: Stepper) -> int:
    """The largest micro batch that fits on every rank (collective). The session is restored afterwards.

    Raises TrainerError if not even one sample fits.
    """
    world = session.world
    state = shared_state(parts_on_host(session.sharded_state(), world), world, session.settings.checkpoint_dir)
    accumulation = session.grad_accum
    # Memory must be measured with the optimizer's state, which the first step creates.
    _probe(session, stepper, 1)
    batch_size = find_batch(lambda size: _probe(session, stepper, size), session.settings.max_batch_size, world)
    session.strategy.load_optimizer_state({})
    session.load(state)
    session.grad_accum = accumulation
    forget_compiled(session.settings)
    return batch_size


def _probe(session: PhaseSession, stepper: Stepper, batch_size: int) -> Probe | None:
    """Train one step of up to two micro batches of this size. Returns None if any rank ran out of memory."""
    device, strategy = session.world.device, session.strategy
    session.set_batch(batch_size, min(session.grad_accum, 2))
    forget_compiled(session.settings)
    base = _reset_memory(device)
    total = stepper.gradients(session.progress.step + 1, survive=strategy.can_settle)
    if session.world.vote(total is None)[0]:
        stepper.renew()
        return None
    stepper.unscale()
    stepper.update()
    if device.type != "cuda":
        # The limit of a CPU process is unknown; only a failed allocation shows it.
        return Probe(peak_bytes=0, total_bytes=1)
    torch.cuda.synchronize(device)
    free, total_bytes = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    return Probe(
        peak_bytes=torch.cuda.max_memory_reserved(device),
        total_bytes=min(free + own, int(total_bytes * session.settings.memory_fraction)),
        base_bytes=base,
    )


def _reset_memory(device: torch.device) -> int:
    """Release cached memory and reset the peak. Returns the bytes still reserved; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_reserved(device)
