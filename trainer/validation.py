"""What a model is worth on data that it was not trained on."""

from __future__ import annotations

import contextlib
import time

import torch

from trainer.session import Session

# Without gradients larger batches fit than in training; a batch of one would take forever.
_SMALLEST_BATCH = 64


def validate(session: Session) -> tuple[dict[str, float], float]:
    """Means over the held-out data, which the ranks share between them, as ``val/…``; and the seconds it took.

    The averaged weights are measured where there are any. Collective.
    """
    began = time.perf_counter()
    objective, world = session.objective, session.world
    batch_size = max(min(_SMALLEST_BATCH, session.settings.max_batch_size), session.batch_size)
    sums: dict[str, torch.Tensor] = {}
    averaged = session.ema.swapped() if session.ema else contextlib.nullcontext()
    objective.eval()
    with averaged, torch.no_grad():
        for fields in session.held_out.batches(batch_size):
            with session.precision.autocast():
                measured = objective.measure(fields)
            for name, value in measured.items():
                sums[name] = sums[name] + value.double() if name in sums else value.double()
    objective.train()
    names = sorted(sums)
    # Ranks that share their samples count them equally often, which means do not change.
    totals = dict(zip(names, world.sum(*(sums[name] for name in names)), strict=True))
    means = {f"val/{name}": value for name, value in objective.summary(totals).items()}
    return means, time.perf_counter() - began
