"""Options of argparse, and of parsers with its ``add_argument``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputui.profiles.init.script_options import Module, Option, other_flags, usual_flag
from gputui.profiles.init.syntax import constant, is_known, keyword, last_name, text_of, type_name

_MAKES_EXCLUSIVE = "add_mutually_exclusive_group"


def argparse_options(module: Module) -> Iterator[Option]:
    """``add_argument("-b", "--batch-size", dest="batch", default=16)``."""
    groups = _ExclusiveGroups(module)
    for call in module.calls_of("add_argument"):
        spellings = [text for argument in call.args if (text := text_of(argument))]
        if not spellings or constant(keyword(call, "action")) in ("version", "help"):
            continue
        if spellings[0].startswith("-"):
            yield _option(call, spellings, groups.line_of(call))
        else:
            yield _positional(call, spellings[0].replace("-", "_"), groups.line_of(call))


def _positional(call: ast.Call, name: str, group: int | None) -> Option:
    takes_many = _takes_many(call)
    kind = type_name(keyword(call, "type"))
    return Option("", name, is_required=not takes_many, takes_many=takes_many, type=kind, exclusive_group=group)


def _option(call: ast.Call, flags: list[str], group: int | None) -> Option:
    action = constant(keyword(call, "action"))
    default = keyword(call, "default")
    flag = usual_flag(flags)
    name = flag.lstrip("-").replace("-", "_")
    if action != "store_false":  # whose value is the opposite of its destination's
        name = text_of(keyword(call, "dest")) or name
    negatives: tuple[str, ...] = ()
    if last_name(keyword(call, "action")) == "BooleanOptionalAction":
        negatives = tuple(f"--no-{spelling[2:]}" for spelling in flags if spelling.startswith("--"))
    is_flag = action in ("store_true", "store_false", "store_const", "count") or bool(negatives)
    value = constant(default)
    if is_flag and default is None:
        value = False
    return Option(
        flag,
        name,
        value,
        is_known=is_known(default),
        is_flag=is_flag,
        is_required=constant(keyword(call, "required")) is True,
        others=other_flags(flags),
        negatives=negatives,
        takes_many=_takes_many(call) and not is_flag,
        help=text_of(keyword(call, "help")),
        type=type_name(keyword(call, "type")),
        exclusive_group=group,
    )


def _takes_many(call: ast.Call) -> bool:
    """Return whether an option takes several words, or none, or may come several times."""
    count = keyword(call, "nargs")
    return (count is not None and constant(count) != 1) or constant(keyword(call, "action")) in ("append", "extend")


class _ExclusiveGroups:
    """The mutually exclusive groups of argparse in a file."""

    def __init__(self, module: Module) -> None:
        self._bindings: dict[str, list[ast.Call]] = {}
        if not module.calls_of(_MAKES_EXCLUSIVE):
            return
        for node in module.nodes:
            match node:
                case (
                    ast.Assign(targets=[target], value=ast.Call() as call)
                    | ast.AnnAssign(target=target, value=ast.Call() as call)
                    | ast.NamedExpr(target=target, value=ast.Call() as call)
                ):
                    self._bindings.setdefault(last_name(target), []).append(call)

    def line_of(self, call: ast.Call) -> int | None:
        """The line of the group whose ``add_argument`` is called, None if it is no exclusive one."""
        if not isinstance(call.func, ast.Attribute):
            return None
        maker = call.func.value
        if not isinstance(maker, ast.Call):
            # A name may hold one group after the other.
            bindings = self._bindings.get(last_name(maker), [])
            earlier = [binding for binding in bindings if binding.lineno <= call.lineno]
            if not earlier:
                return None
            maker = max(earlier, key=lambda binding: binding.lineno)
        if last_name(maker) != _MAKES_EXCLUSIVE:
            return None
        return maker.lineno
