"""Validation: means of the objective's measures over the held-out data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Literal

import torch

from trainer.batch import is_out_of_memory
from trainer.session import PhaseSession

# Without gradients, larger batches fit than in training. For text, the logits [tokens, vocabulary] are the limit.
_MIN_SAMPLES = 64
_MIN_TOKENS = 8192


def validate(
    session: PhaseSession, stopping: Callable[[], bool] = lambda: False
) -> tuple[dict[str, float] | None, float]:
    """Measure the averaged weights, or the current ones, on the held-out data (collective).

    Returns the means as ``val/…``, and the seconds it took. The means are None if `stopping` returned True on any rank,
    because a validation may take longer than a process has to stop.

    If memory runs out on a rank, all start again with half the batch, kept in `session.validation_batch`. This needs
    settings that allow smaller batches in training, too, and a forward pass without collectives.
    """
    began = time.perf_counter()
    settings = session.settings
    survive = bool(settings.oom_retries or settings.batch_size == "auto") and session.strategy.measures_alone
    session.objective.eval()
    with session.ema.swapped() if session.ema else contextlib.nullcontext(), torch.no_grad():
        session.strategy.before_measuring()
        while True:
            size = session.validation_batch or _batch_size(session)
            outcome = _sums(session, size, stopping, survive=survive and size > 1)
            if outcome != "out of memory":
                break
            session.validation_batch = size // 2
            if session.world.device.type == "cuda":
                torch.cuda.empty_cache()
    session.strategy.after_measuring()
    session.objective.train()
    if isinstance(outcome, str):
        return None, time.perf_counter() - began
    outcome = session.objective.joined(outcome)
    names = sorted(outcome)
    # Ranks that share their samples count them equally often, which means do not change.
    totals = dict(zip(names, session.world.sum(*(outcome[name] for name in names)), strict=True))
    means = {f"val/{name}": value for name, value in session.objective.summary(totals).items()}
    return means, time.perf_counter() - began


def _sums(
    session: PhaseSession, batch_size: int, stopping: Callable[[], bool], *, survive: bool
) -> dict[str, torch.Tensor] | Literal["stopped", "out of memory"]:
    """What `measure` returns for this rank's share, or why any rank gave up. All agree on that before each batch."""
    sums: dict[str, torch.Tensor] = {}
    failed = False

    def agree() -> Literal["", "stopped", "out of memory"]:
        stopped, out_of_memory = session.world.vote(stopping(), failed)
        return "stopped" if stopped else "out of memory" if out_of_memory else ""

    for fields in session.held_out.batches(batch_size):
        if reason := agree():
            return reason
        try:
            is_empty = not len(next(iter(fields.values())))
            with session.precision.autocast():
                # An empty batch still needs a forward pass, which may be collective; few networks accept 0 samples.
                measured = session.objective.measure(session.held_out.any_sample() if is_empty else fields)
            for name, value in measured.items():
                if value.dim():
                    rows = value[:0] if is_empty else value
                    sums[name] = torch.cat([sums[name], rows]) if name in sums else rows
                else:
                    value = torch.zeros_like(value) if is_empty else value
                    sums[name] = sums[name] + value.double() if name in sums else value.double()
        except Exception as error:
            if not survive or not is_out_of_memory(error):
                raise
            failed = True
    return agree() or sums if survive else sums


def _batch_size(session: PhaseSession) -> int:
    tokens = session.objective.tokens_per_sample
    minimum = min(_MIN_SAMPLES, max(1, _MIN_TOKENS // tokens)) if tokens else _MIN_SAMPLES
    return max(min(minimum, session.settings.max_batch_size), session.batch_size)
