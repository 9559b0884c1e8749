"""Averaged weights: an exponential moving average that is often better on held-out data than the weights themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


class Ema:
    """The average of some parameters over the steps of the optimizer.

    The parameters may be shares of a sharded model: every rank averages its own. Buffers, such as the statistics of
    batch normalisation, are not averaged.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self._parameters = {name: parameter.detach() for name, parameter in parameters.items()}
        self._averages = {name: parameter.clone() for name, parameter in self._parameters.items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step number `step` of the run, the first being 1: average = d * average + (1 - d) * weights.

        d is the decay, but at most (1 + step) / (10 + step), so that the initial weights are soon forgotten.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        if self._parameters:
            torch._foreach_lerp_(list(self._averages.values()), list(self._parameters.values()), 1 - decay)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """The model has the averaged weights inside, and its own again afterwards.

        With FSDP, gathered copies of the weights must be freed on both ends of it.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        """The averages by name, shares as the parameters are; live tensors."""
        return dict(self._averages)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over averages, shares as the parameters are.

        One that the state lacks starts at its parameter's value, as when averaging begins in the middle of a run.
        """
        for name, average in self._averages.items():
            average.copy_(state.get(name, self._parameters[name]))

    @torch.no_grad()
    def _swap(self) -> None:
        # Values, not storages: optimizers, buckets and shards refer to the parameters' memory.
        for name, parameter in self._parameters.items():
            kept = parameter.clone()
            parameter.copy_(self._averages[name])
            self._averages[name].copy_(kept)
