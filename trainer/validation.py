"""What a model is worth on data that it was not trained on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Literal

import torch

from trainer.batch import is_out_of_memory
from trainer.session import PhaseSession

# A batch of one would take forever, and without gradients larger ones fit than in training. But for text: most of what
# a language model needs is its logits, of every token as many as there are tokens to choose from.
_SMALLEST_BATCH = 64
_TOKENS = 8192


def validate(
    session: PhaseSession, stopping: Callable[[], bool] = lambda: False
) -> tuple[dict[str, float] | None, float]:
    """Means over the held-out data, which the ranks share between them, as ``val/…``; and the seconds it took.

    The averaged weights are measured if there are any. No means where `stopping` has come true on any rank: it may
    take longer than a process has that was asked to stop. Collective.

    Where memory runs out on a rank, all begin again with half the batch, which `session.validation_batch` keeps; if
    the settings let training step down as well, and no rank waits inside a forward pass for the one that failed.
    """
    began = time.perf_counter()
    settings = session.settings
    survive = bool(settings.oom_retries or settings.batch_size == "auto") and session.strategy.measures_alone
    session.strategy.before_measuring()
    averaged = session.ema.swapped() if session.ema else contextlib.nullcontext()
    session.objective.eval()
    with averaged, torch.no_grad():
        while True:
            size = session.validation_batch or _batch_size(session)
            outcome = _sums(session, size, stopping, survive=survive and size > 1)
            if outcome != "out of memory":
                break
            session.validation_batch = size // 2
            if session.world.device.type == "cuda":
                torch.cuda.empty_cache()
    session.objective.train()
    if isinstance(outcome, str):
        return None, time.perf_counter() - began
    names = sorted(outcome)
    # Ranks that share their samples count them equally often, which means do not change.
    totals = dict(zip(names, session.world.sum(*(outcome[name] for name in names)), strict=True))
    means = {f"val/{name}": value for name, value in session.objective.summary(totals).items()}
    return means, time.perf_counter() - began


def _sums(
    session: PhaseSession, batch_size: int, stopping: Callable[[], bool], *, survive: bool
) -> dict[str, torch.Tensor] | Literal["stopped", "out of memory"]:
    """This rank's sums over its share; or what any rank gave up for, which all ranks hear of before the next batch."""
    sums: dict[str, torch.Tensor] = {}
    failed = False

    def given_up() -> Literal["", "stopped", "out of memory"]:
        stopped, out_of_memory = session.world.vote(stopping(), failed)
        return "stopped" if stopped else "out of memory" if out_of_memory else ""

    for fields in session.held_out.batches(batch_size):
        if reason := given_up():
            return reason
        try:
            nothing = not len(next(iter(fields.values())))
            with session.precision.autocast():
                # A forward pass may be something that all ranks do together, and few networks take no samples.
                measured = session.objective.measure(session.held_out.any_sample() if nothing else fields)
            for name, value in measured.items():
                value = torch.zeros_like(value) if nothing else value
                sums[name] = sums[name] + value.double() if name in sums else value.double()
        except Exception as error:
            if not survive or not is_out_of_memory(error):
                raise
            failed = True
    return given_up() or sums if survive else sums


def _batch_size(session: PhaseSession) -> int:
    tokens = session.objective.tokens_per_sample
    smallest = min(_SMALLEST_BATCH, max(1, _TOKENS // tokens)) if tokens else _SMALLEST_BATCH
    return max(min(smallest, session.settings.max_batch_size), session.batch_size)
