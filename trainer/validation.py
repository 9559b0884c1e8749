"""What a model is worth on data that it was not trained on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch

from trainer.session import Session

# A batch of one would take forever, and without gradients larger ones fit than in training. But for text: most of what
# a language model needs is its logits, of every token as many as there are tokens to choose from.
_SMALLEST_BATCH = 64
_TOKENS = 8192


def validate(session: Session, stopping: Callable[[], bool] = lambda: False) -> tuple[dict[str, float] | None, float]:
    """Means over the held-out data, which the ranks share between them, as ``val/…``; and the seconds it took.

    The averaged weights are measured where there are any. No means where `stopping` has come true on any rank: it may
    take longer than a process has that was asked to stop. Collective.
    """
    began = time.perf_counter()
    objective, world = session.objective, session.world
    sums: dict[str, torch.Tensor] = {}
    given_up = False
    session.strategy.before_measuring()
    averaged = session.ema.swapped() if session.ema else contextlib.nullcontext()
    objective.eval()
    with averaged, torch.no_grad():
        for fields in session.held_out.batches(_batch_size(session)):
            if given_up := bool(world.vote(stopping())[0]):
                break
            nothing = not len(next(iter(fields.values())))
            with session.precision.autocast():
                # A forward pass may be something that all ranks do together, and few networks take no samples.
                measured = objective.measure(session.held_out.any_sample() if nothing else fields)
            for name, value in measured.items():
                value = torch.zeros_like(value) if nothing else value
                sums[name] = sums[name] + value.double() if name in sums else value.double()
    objective.train()
    if given_up:
        return None, time.perf_counter() - began
    names = sorted(sums)
    # Ranks that share their samples count them equally often, which means do not change.
    totals = dict(zip(names, world.sum(*(sums[name] for name in names)), strict=True))
    means = {f"val/{name}": value for name, value in objective.summary(totals).items()}
    return means, time.perf_counter() - began


def _batch_size(session: Session) -> int:
    tokens = session.objective.tokens_per_sample
    smallest = min(_SMALLEST_BATCH, max(1, _TOKENS // tokens)) if tokens else _SMALLEST_BATCH
    return max(min(smallest, session.settings.max_batch_size), session.batch_size)
