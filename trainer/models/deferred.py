"""Models whose parameters take no memory until each is asked for: what initialises them is recorded and done later.

A sharded model must never be whole on a rank, and must still begin with the very weights that one process would give
it. So inside `DeferredInit` parameters are on the meta device, in-place operations on them are recorded together
with the state of the random generator, and `initial` does those of one parameter again, on a tensor that has memory.
Buffers are small, and as always.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

# What makes tensors that nothing was written to.
_WITHOUT_VALUES = (torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.empty_strided)

Initial = dict[str, Callable[[], Tensor]]  # by the name of a parameter: a new tensor with its first values


class NotDeferrableError(Exception):
    """A parameter is initialised by more than random numbers and operations in place, or is not what was registered."""


@dataclass(frozen=True)
class _View:
    """Stands for a tensor in the memory of the parameter."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Operation:
    function: Any
    arguments: Any  # args and kwargs, with `_View`s
    random_state: Tensor | None

    def run(self, on: Tensor) -> Any:
        args, kwargs = tree_map(
            lambda leaf: on.as_strided(leaf.size, leaf.stride, leaf.offset) if isinstance(leaf, _View) else leaf,
            self.arguments,
        )
        if self.random_state is not None:
            torch.set_rng_state(self.random_state)
        return self.function(*args, **kwargs)


class _Recipe:
    """How to compute a parameter's initial values: from `start`, its value when registered (None: unset)."""

    def __init__(self, like: Tensor, start: Callable[[], Tensor] | None) -> None:
        self.empty = functools.partial(torch.empty, like.shape, dtype=like.dtype)
        self._start = start
        self.operations: list[_Operation] = []

    @property
    def has_values(self) -> bool:
        return self._start is not None or bool(self.operations)

    def __call__(self) -> Tensor:
        before = torch.get_rng_state()
        tensor = self.empty() if self._start is None else self._start()
        with torch.no_grad():
            for operation in self.operations:
                operation.run(tensor)
        torch.set_rng_state(before)
        return tensor

    def followed_by(self, operation: _Operation, result: Tensor) -> _Recipe:
        """That of what an operation makes of the tensor as it is now."""
        now = _Recipe(result, self._start)
        now.empty, now.operations = self.empty, list(self.operations)
        return _Recipe(result, lambda: operation.run(now()))


class DeferredInit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Around the construction of a model on the CPU. Random numbers are drawn as without it, and thrown away."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recipes: dict[int, _Recipe] = {}  # by storage
        self._unset: set[int] = set()  # storages of tensors that nothing was written to
        self._room = torch.empty(0, dtype=torch.uint8)
        self._held: list[Tensor] = []  # keeps storages alive, so that their numbers are not reused

    def __enter__(self) -> Any:
        self._former = (nn.Module.register_parameter, nn.init._no_grad_trunc_normal_)
        nn.Module.register_parameter = self._registering()  # type: ignore[method-assign]
        # The one function of torch that does nothing at all to a tensor on the meta device.
        nn.init._no_grad_trunc_normal_ = self._truncating()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        nn.Module.register_parameter, nn.init._no_grad_trunc_normal_ = self._former  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _registering(self) -> Callable[..., None]:
        register = nn.Module.register_parameter

        def register_without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            if parameter is not None and not parameter.is_meta:
                parameter = self._without_memory(parameter)
            register(module, name, parameter)

        return register_without_memory

    def _truncating(self) -> Callable[..., Tensor]:
        original = nn.init._no_grad_trunc_normal_

        def truncated(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not tensor.is_meta:
                return original(tensor, *args, **kwargs)
            self._change(self._operation(original, (tensor, *args), kwargs, [tensor], is_random=True), tensor)
            return tensor

        return truncated

    def initial(self, model: nn.Module) -> Initial:
        """The recipes of all parameters. Raises NotDeferrableError."""
        found: Initial = {}
        for name, parameter in model.named_parameters():
            recipe = self._recipes.get(_storage(parameter)) if parameter.is_meta else None
            if recipe is None or not recipe.has_values:
                raise NotDeferrableError(name)
            found[name] = recipe
        return found

    def _without_memory(self, parameter: nn.Parameter) -> nn.Parameter:
        values = parameter.detach()
        if not values.is_contiguous() or values.device.type != "cpu":
            raise NotDeferrableError("a parameter in an order of its own, or on another device")
        start = None if _storage(values) in self._unset else values.clone
        meta = torch.empty_like(values, device="meta")
        self._remember(meta, _Recipe(meta, start))
        return nn.Parameter(meta, requires_grad=parameter.requires_grad)

    def _remember(self, tensor: Tensor, recipe: _Recipe) -> None:
        self._held.append(tensor)
        self._recipes[_storage(tensor)] = recipe

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        before = {_storage(tensor) for tensor in inputs}
        operation = None
        if any(tensor.is_meta for tensor in inputs):
            is_random = torch.Tag.nondeterministic_seeded in function.tags
            operation = self._operation(function, args, kwargs, inputs, is_random=is_random)
        if function._schema.is_mutable:
            self._unset -= before
            if operation:
                self._change(operation, inputs[0])
        result = function(*args, **kwargs)
        created = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and _storage(leaf) not in before]
        storages = {_storage(tensor) for tensor in created}
        if function.overloadpacket in _WITHOUT_VALUES:
            self._unset |= storages
        else:
            self._unset -= storages
        if operation and isinstance(result, Tensor) and created:
            self._remember(result, self._recipes[_storage(inputs[0])].followed_by(operation, result))
        return result

    def _change(self, operation: _Operation, tensor: Tensor) -> None:
        """Record an in-place operation on a parameter."""
        recipe = self._recipes[_storage(tensor)]
        recipe.operations.append(operation)
        if operation.random_state is not None:
            with torch.no_grad(), _disable_current_modes():
                operation.run(self._scratch(recipe.empty))  # advances the generator as without deferral

    def _scratch(self, empty: Callable[..., Tensor]) -> Tensor:
        """Scratch memory for dropped results, reused so that host memory does not fragment."""
        like = empty(device="meta")
        if self._room.nbytes < like.nbytes:
            self._room = torch.empty(like.nbytes, dtype=torch.uint8)
        return self._room[: like.nbytes].view(like.dtype).view(like.shape)

    def _operation(self, function: Any, args: Any, kwargs: Any, inputs: list[Tensor], *, is_random: bool) -> _Operation:
        if len({_storage(tensor) for tensor in inputs}) != 1 or _storage(inputs[0]) not in self._recipes:
            raise NotDeferrableError(str(function))
        arguments = tree_map(
            lambda leaf: _view_of(leaf) if isinstance(leaf, Tensor) else leaf,
            (args, kwargs),
        )
        return _Operation(function, arguments, torch.get_rng_state() if is_random else None)


def _view_of(tensor: Tensor) -> _View:
    return _View(tensor.size(), tensor.stride(), int(tensor.storage_offset()))


def _storage(tensor: Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number
