"""Validation: means of the objective's measures over the held-out data."""

from __future__ import annotations

import contextlib
import itertools
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

    Returns the means as ``val/…``, None if `stopping` was True on any rank, and the seconds it took.

    If memory runs out on a rank, all start again with half the batch, kept in `session.validation_batch`. This needs
    settings that allow smaller batches in training, too, and a forward pass without collectives.
    """
    began = time.perf_counter()
    settings = session.settings
    survive = bool(settings.oom_retries or settings.batch_size == "auto") and session.strategy.measures_alone
    session.objective.eval()
    with session.ema.swapped() if session.ema else contextlib.nullcontext(), torch.no_grad():
        session.strategy.before_measuring()
        size = session.validation_batch or _batch_size(session)
        while (outcome := _sums(session, size, stopping, survive=survive and size > 1)) == "out of memory":
            session.validation_batch = size = size // 2
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
    """What `measure` returns for this rank's share, or why any rank gave up; all agree on that each time."""
    parts: dict[str, list[torch.Tensor]] = {}
    failed = False
    for fields in itertools.chain(session.held_out.batches(batch_size), [None]):
        stopped, out_of_memory = session.world.vote(stopping(), failed)
        if stopped or out_of_memory:
            return "stopped" if stopped else "out of memory"
        if fields is None:
            break
        is_empty = not len(next(iter(fields.values())))
        try:
            with session.precision.autocast():
                # An empty batch still needs a forward pass, which may be collective; few networks accept 0 samples.
                measured = session.objective.measure(session.held_out.any_sample() if is_empty else fields)
        except Exception as error:
            if not survive or not is_out_of_memory(error):
                raise
            failed = True
            continue
        for name, value in measured.items():
            value = value if value.dim() else value.double()
            if is_empty:
                value = value[:0] if value.dim() else torch.zeros_like(value)
            parts.setdefault(name, []).append(value)
    return {name: torch.cat(values) if values[0].dim() else torch.stack(values).sum() for name, values in parts.items()}


def _batch_size(session: PhaseSession) -> int:
    tokens = session.objective.tokens_per_sample
    minimum = min(_MIN_SAMPLES, max(1, _MIN_TOKENS // tokens)) if tokens else _MIN_SAMPLES
    return max(min(minimum, session.settings.max_batch_size), session.batch_size)
