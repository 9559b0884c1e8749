"""Validation: means of the objective's measures over the held-out data."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor

from trainer.batch import is_out_of_memory
from trainer.data.contract import Fields
from trainer.precision import release_memory
from trainer.session import PhaseSession

# Without gradients, larger batches fit than in training. For text, the logits [tokens, vocabulary] are the limit.
_MIN_SAMPLES = 64
_MIN_TOKENS = 8192


def validate(
    session: PhaseSession, stopping: Callable[[], bool] = lambda: False
) -> tuple[dict[str, float] | None, float]:
    """Measure the averaged weights, or the current ones, on the held-out data (collective).

    Returns the means as ``val/…``, None if `stopping` was True on any rank, and the seconds it took.
    """
    began = time.perf_counter()
    session.objective.eval()
    averaged = session.ema.swapped() if session.ema else contextlib.nullcontext()
    with session.strategy.measuring(), averaged, torch.no_grad():
        measured = _measure_all(session, stopping)
    session.objective.train()
    if measured is None:
        return None, time.perf_counter() - began
    sums = sorted(session.objective.joined(measured).items())
    # Ranks that share their samples count them equally often, which means do not change.
    totals = session.world.sum(*(value for _, value in sums))
    means = session.objective.summary({name: total for (name, _), total in zip(sums, totals, strict=True)})
    return {f"val/{name}": value for name, value in means.items()}, time.perf_counter() - began


def _measure_all(session: PhaseSession, stopping: Callable[[], bool]) -> dict[str, Tensor] | None:
    """This rank's measures of all its batches, rows joined and numbers added up; None if any rank is to stop.

    If memory runs out on a rank, all begin again with half the batch, kept in `session.held_out`. This needs
    settings that allow smaller batches in training, too, and a forward pass without collectives.
    """
    settings = session.settings
    tokens = session.objective.tokens_per_sample
    may_halve = bool(settings.oom_retries or settings.batch_size == "auto") and session.strategy.measures_alone
    least = _MIN_SAMPLES
    if tokens:
        least = min(least, max(1, _MIN_TOKENS // tokens))
    size = session.held_out.reduced_batch or max(min(least, settings.max_batch_size), session.batches.size)
    while True:
        # Closed even if the objective fails: at the interpreter's end it is too late to end reading processes.
        with contextlib.closing(session.held_out.batches(size)) as batches:
            parts, end = _measure_batches(session, batches, stopping, survive=may_halve and size > 1)
        if end == "stopped":
            return None
        if end == "done":
            break
        session.held_out.reduced_batch = size = size // 2
        release_memory(session.world.device)
    measures = {}
    for name, values in parts.items():
        if values[0].dim():
            measures[name] = torch.cat(values)
        else:
            measures[name] = torch.stack(values).sum(dtype=torch.float64)
    return measures


def _measure_batches(
    session: PhaseSession, batches: Iterable[Fields], stopping: Callable[[], bool], *, survive: bool
) -> tuple[dict[str, list[Tensor]], Literal["done", "stopped", "out of memory"]]:
    """The measures of each batch, up to the first at which any rank is to stop or, to `survive`, ran out of memory."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for fields in batches:
        measured = _measure(session, fields, survive=survive)
        stopped, out_of_memory = session.world.vote(stopping(), measured is None)
        if stopped:
            return parts, "stopped"
        if measured is None or out_of_memory:
            return parts, "out of memory"
        for name, value in measured.items():
            parts[name].append(value)
    return parts, "done"


def _measure(session: PhaseSession, fields: Fields, *, survive: bool) -> dict[str, Tensor] | None:
    """The objective's measures of a batch; None if memory ran out and `survive` is set."""
    empty = not len(next(iter(fields.values())))
    try:
        with session.precision.autocast():
            if empty:
                # It still needs a forward pass, which may be collective; few networks accept 0 samples.
                fields = session.held_out.any_sample()
            measured = {name: torch.as_tensor(value) for name, value in session.objective.measure(fields).items()}
    except Exception as error:
        if survive and is_out_of_memory(error):
            return None
        raise
    if not empty:
        return measured
    nothing = {}
    for name, value in measured.items():
        if value.dim():
            nothing[name] = value[:0]
        else:
            nothing[name] = torch.zeros_like(value)
    return nothing
