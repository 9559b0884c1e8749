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
import torch.distributed as dist
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
        """Replaces gradients by what the ranks exchange of their mean, in place (collective)."""
        pairs = list(zip(parameters, gradients, strict=True))
        matrices = [(parameter, gradient) for parameter, gradient in pairs if self._is_thinner(parameter)]
        self._mean([gradient for parameter, gradient in pairs if not self._is_thinner(parameter)])
        wanted = [gradient.reshape(len(gradient), -1) + self._error(parameter) for parameter, gradient in matrices]
        left = [one @ self._factor(parameter) for (parameter, _), one in zip(matrices, wanted, strict=True)]
        self._mean(left)
        left = [torch.linalg.qr(one).Q for one in left]
        right = [one.T @ basis for one, basis in zip(wanted, left, strict=True)]
        self._mean(right)
        for (parameter, gradient), one, basis, factor in zip(matrices, wanted, left, right, strict=True):
            product = basis @ factor.T
            self._errors[parameter] = one.sub_(product)
            self._factors[parameter] = factor
            gradient.copy_(product.view(gradient.shape))

    def state(self) -> ExchangeState:
        """What the next step depends on, live, by parameter name (collective).

        From here on each rank has the mean error as its own, so that the run goes on as one that loads this state.
        """
        all_reduce_mean(self._errors.values(), self._world)
        return {
            self._names[parameter]: {"error": error.view(parameter.shape), "factor": self._factors[parameter]}
            for parameter, error in self._errors.items()
        }

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes over a state; parameters without one start without. Raises ValueError if a shape does not fit."""
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

    def _mean(self, tensors: Sequence[Tensor]) -> None:
        """The ranks' means, in place, in one exchange."""
        if not tensors:
            return
        packed = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(self._world.size)
        dist.all_reduce(packed, group=self._world.group)
        for tensor, part in zip(tensors, torch.split(packed, [one.numel() for one in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))
