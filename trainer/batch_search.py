"""--batch-size auto: the largest micro batch that fits, found by trial steps."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.batch import MicroBatches, Probe, find_batch
from trainer.checkpoints import parts_on_host, shared_state
from trainer.precision import forget_compiled, release_memory
from trainer.stepping import Stepper


def largest_batch(stepper: Stepper) -> int:
    """The largest micro batch that fits on every rank (collective). The session is restored afterwards.

    Raises TrainerError if not even one sample fits.
    """
    session = stepper.session
    settings = session.settings
    world = session.world
    state = shared_state(parts_on_host(session.state(), world), world, settings.checkpoint_dir)
    batches = session.batches
    trials = 0

    def probe(size: int) -> Probe | None:
        nonlocal trials
        trials += 1
        return _probe(stepper, size)

    first = 1
    if any(isinstance(module, _BatchNorm) for module in session.objective.model.modules()):
        first = min(2, settings.max_batch_size)  # one sample may have no statistics, which torch refuses
    # A stop request waits for the first step after the search, of which each trial is a sign of life.
    with stepper.signals.patient(lambda: trials):
        # Memory must be measured with the optimizer's state, which the first step creates.
        probe(first)
        batch_size = find_batch(probe, settings.max_batch_size, world, first=first)
    # What the trials left of it: with --reset-optimizer, `load` does not touch the optimizer's state.
    session.strategy.load_optimizer_state({})
    session.load(state)
    session.batches = batches
    forget_compiled(settings)
    release_memory(world.device)
    return batch_size


def _probe(stepper: Stepper, batch_size: int) -> Probe | None:
    """Train one step of up to two micro batches of this size. Returns None if any rank ran out of memory."""
    session = stepper.session
    strategy = session.strategy
    device = session.world.device
    session.set_batches(MicroBatches(batch_size, min(session.batches.per_step, 2)))
    forget_compiled(session.settings)
    base = 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        base = torch.cuda.memory_reserved(device)
    accumulated = stepper.gradients(session.progress.step + 1, survive=strategy.can_settle)
    if accumulated.votes().out_of_memory:
        stepper.renew()
        return None
    session.precision.scaler.unscale_(strategy.optimizer)
    stepper.update()
    if device.type != "cuda":
        # The limit of a CPU process is unknown; only a failed allocation shows it.
        return Probe(peak_bytes=0, total_bytes=1)
    torch.cuda.synchronize(device)
    free, total_bytes = torch.cuda.mem_get_info(device)
    usable = min(free + torch.cuda.memory_reserved(device), int(total_bytes * session.settings.memory_fraction))
    return Probe(torch.cuda.max_memory_reserved(device), usable, base)
