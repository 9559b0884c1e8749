"""Averaged weights: an exponential moving average that is often better on held-out data than the weights themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


class Ema:
    """The average of some parameters over the steps of the optimizer.

    The parameters may be shares of a sharded model (DTensor); every rank averages its own. Buffers, such as the
    statistics of batch normalisation, are not averaged.
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
        """The averages by name, whole. Collective where the parameters are sharded."""
        return {name: _whole(average) for name, average in self._averages.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over whole averages, which every rank passes in. Collective where the parameters are sharded.

        An average that the state lacks starts at its parameter's value: the model has one that was not averaged before.
        """
        for name, average in self._averages.items():
            average.copy_(_share(state[name], average) if name in state else self._parameters[name])

    @torch.no_grad()
    def _swap(self) -> None:
        # Values, not storages: optimizers, buckets and shards refer to the parameters' memory.
        for name, parameter in self._parameters.items():
            kept = parameter.clone()
            parameter.copy_(self._averages[name])
            self._averages[name].copy_(kept)


def _whole(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _share(whole: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that belongs where `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
