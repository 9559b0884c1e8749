"""PowerSGD: matrices of gradients are exchanged as products of two thin ones, and what that leaves out is not lost.

Vogels, Karimireddy, Jaggi (2019), "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
arXiv:1905.13727.

Each rank adds what the product left out of its gradients (the error) to those of its next step. All that the ranks
exchange is linear in gradient plus error, so the product depends on the mean error alone: the mean in place of each
rank's own error changes nothing but rounding. That is the form in which a checkpoint has it, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.parallel.collectives import all_reduce_mean
from trainer.world import World

# By parameter name: {"error": …, "factor": …}.
ExchangeState = dict[str, dict[str, Tensor]]


class PowerSgd:
    """The exchange of one model's gradients in products of rank `rank`. All ranks take the same steps.

    A matrix whose factors are no smaller than itself, and every vector, is exchanged as it is.
    """

    def __init__(self, world: World, rank: int, names: Mapping[Tensor, str]) -> None:
        self._world = world
        self._rank = rank
        self._names = names
        self._places = {parameter: place for place, parameter in enumerate(names)}
        self._errors: dict[Tensor, Tensor] = {}  # [rows, columns], this rank's
        self._factors: dict[Tensor, Tensor] = {}  # [columns, rank], the same on all ranks; each step starts from it

    @torch.no_grad()
    def average(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Replace gradients by low-rank approximations of their mean over the ranks, in place (collective)."""
        pairs = list(zip(parameters, gradients, strict=True))
        matrices = [(parameter, gradient) for parameter, gradient in pairs if self._is_thinner(parameter)]
        all_reduce_mean([gradient for parameter, gradient in pairs if not self._is_thinner(parameter)], self._world)
        corrected = [gradient.reshape(len(gradient), -1) + self._error(parameter) for parameter, gradient in matrices]
        left = [matrix @ self._factor(parameter) for (parameter, _), matrix in zip(matrices, corrected, strict=True)]
        all_reduce_mean(left, self._world)
        left = [torch.linalg.qr(factor).Q for factor in left]
        right = [matrix.T @ basis for matrix, basis in zip(corrected, left, strict=True)]
        all_reduce_mean(right, self._world)
        for (parameter, gradient), matrix, basis, factor in zip(matrices, corrected, left, right, strict=True):
            product = basis @ factor.T
            self._errors[parameter] = matrix.sub_(product)
            self._factors[parameter] = factor
            gradient.copy_(product.view(gradient.shape))

    def state(self) -> ExchangeState:
        """The state that the next step depends on, live, by parameter name (collective).

        Afterwards each rank's error is the mean of all, so that this run continues like one that loads the state.
        """
        all_reduce_mean(self._errors.values(), self._world)
        return {
            self._names[parameter]: {"error": error.view(parameter.shape), "factor": self._factors[parameter]}
            for parameter, error in self._errors.items()
        }

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state. Parameters that it lacks start without one. Raises ValueError if a shape does not fit."""
        self._errors.clear()
        self._factors.clear()
        for parameter, name in self._names.items():
            values = state.get(name)
            if values is None or not self._is_thinner(parameter):
                continue
            if values["error"].shape != parameter.shape:
                shapes = f"{tuple(values['error'].shape)}, the parameter {tuple(parameter.shape)}"
                raise ValueError(f"the exchange's error of {name} has shape {shapes}")
            self._errors[parameter] = values["error"].to(parameter.device).reshape(len(parameter), -1).clone()
            if values["factor"].shape[-1] == self._rank:  # else they are of another --powersgd-rank
                self._factors[parameter] = values["factor"].to(parameter.device).clone()

    def _is_thinner(self, parameter: Tensor) -> bool:
        if parameter.dim() < 2:
            return False
        rows, columns = len(parameter), parameter[0].numel()
        return (rows + columns) * self._rank < rows * columns

    def _error(self, parameter: Tensor) -> Tensor:
        if parameter not in self._errors:
            self._errors[parameter] = parameter.new_zeros(len(parameter), parameter[0].numel())
        return self._errors[parameter]

    def _factor(self, parameter: Tensor) -> Tensor:
        if parameter not in self._factors:
            # The same on all ranks, in whichever order gradients come.
            generator = torch.Generator().manual_seed(self._places[parameter])
            drawn = torch.randn(parameter[0].numel(), self._rank, generator=generator)
            self._factors[parameter] = drawn.to(parameter)
        return self._factors[parameter]
