"""YAML as plain data with the place of every key, from the nodes of `yaml.compose`.

Tags never construct objects: the text can only become text, numbers, booleans, null, lists and
mappings. Depth, size and the expansion of aliases are bounded. Scalars follow YAML 1.1 where people
expect it (``off`` is false), and YAML 1.2 where 1.1 surprises: ``1e-3`` is a number, ``010`` is
ten, ``1:30`` and ``2024-01-01`` are text. Keys are always text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from msgspec import Struct

MAX_BYTES = 1 << 20  # a file that a person writes is a hundred times smaller
MAX_DEPTH = 16  # no form nests deeper than eight
MAX_VALUES = 10_000  # aliases multiply: a small file may mean millions of values

KeyPath = tuple[str | int, ...]
"""The place of a value: keys and list indices from the top."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    spelling: value
    for word, value in {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.items()
    for spelling in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")
_TEXT = "tag:yaml.org,2002:str"
_PLAIN = "plain"
_MERGE = "<<"


class Mark(Struct, frozen=True):
    """A place in the text; both count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Document:
    """``data``, the mark of every key and list item, and duplicate keys (the first counts)."""

    data: Any
    marks: dict[KeyPath, Mark]
    duplicates: list[tuple[KeyPath, Mark]] = field(default_factory=list)

    def mark(self, place: KeyPath) -> Mark:
        """The mark of the value at ``place``, or of the closest enclosing one."""
        while place and place not in self.marks:
            place = place[:-1]
        return self.marks.get(place, Mark(1, 1))


class YamlError(ValueError):
    """The text is no valid YAML here. ``mark`` is None for the text as a whole."""

    def __init__(self, text: str, mark: Mark | None) -> None:
        super().__init__(text)
        self.mark = mark


def parse(text: str, is_literal: Callable[[KeyPath], bool] = lambda _: False) -> Document:
    """Parse one document. Raises YamlError.

    Args:
        is_literal: Tells the places at which values remain text, such as ``on`` and ``1.10``.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character
        if not isinstance(code, int):
            code = ord(str(code)[:1] or "\0")
        raise YamlError(f"not valid YAML: the character U+{code:04X} is not allowed", Mark(line, 1)) from error
    except yaml.MarkedYAMLError as error:
        mark = _mark(error.problem_mark or error.context_mark)
        raise YamlError(f"not valid YAML: {_in_words(error.problem or error.context or '')}", mark) from error
    except (ValueError, OverflowError, RecursionError) as error:
        # PyYAML converts the number of an escaped character, or of a version, without a check.
        reason = "a number is too large"
        if isinstance(error, RecursionError):
            reason = f"more than {MAX_DEPTH} levels deep"
        raise YamlError(f"not valid YAML: {reason}", None) from error
    document = Document(None, {(): Mark(1, 1)})
    if root is not None:
        document.marks[()] = _mark(root.start_mark)
        document.data = _Builder(document, is_literal).build(root, (), ())
    return document


class _Loader(yaml.SafeLoader):
    """Composes nodes whose tag only says whether a scalar is plain (no quotes, no tag)."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return _TEXT


class _Builder:
    """Converts nodes to data, with bounds on depth and on the expansion of aliases."""

    def __init__(self, document: Document, is_literal: Callable[[KeyPath], bool]) -> None:
        self._document = document
        self._is_literal = is_literal
        self._count = 0
        self._checked: set[yaml.Node] = set()

    def build(self, node: yaml.Node, place: KeyPath, parents: tuple[yaml.Node, ...]) -> Any:
        """The value of a node at ``place``. Raises YamlError."""
        self._enter(node, parents)
        if isinstance(node, yaml.ScalarNode):
            if node.tag != _PLAIN or self._is_literal(place):
                return node.value
            return plain_value(node.value)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._document.marks[(*place, index)] = _mark(item.start_mark)
            return [self.build(item, (*place, index), (*parents, node)) for index, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for key, value in self._merged(node, place, (*parents, node)):
            if key.value not in values:
                self._document.marks[(*place, key.value)] = _mark(key.start_mark)
                values[key.value] = self.build(value, (*place, key.value), (*parents, node))
        return values

    def _merged(
        self, node: yaml.Node, place: KeyPath, parents: tuple[yaml.Node, ...]
    ) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """The pairs of the mapping, then those that ``<<`` merges, which never replace its own.
        ``parents`` include the mapping."""
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError("a key must be a word", _mark(key.start_mark))
            name = (key.value, _is_merge(key))
            if name in keys and node not in self._checked:
                self._document.duplicates.append(((*place, key.value), _mark(key.start_mark)))
            keys.add(name)
        # Once for all aliases of the mapping.
        self._checked.add(node)
        yield from (pair for pair in node.value if not _is_merge(pair[0]))
        for key, value in node.value:
            if not _is_merge(key):
                continue
            sources = [value]
            if isinstance(value, yaml.SequenceNode):
                sources = value.value
            for source in sources:
                if not isinstance(source, yaml.MappingNode):
                    raise YamlError("<< takes a mapping, or a list of mappings", _mark(key.start_mark))
                self._enter(source, parents)
                yield from self._merged(source, place, (*parents, source))

    def _enter(self, node: yaml.Node, parents: tuple[yaml.Node, ...]) -> None:
        """Check that a node can be expanded inside ``parents``. Raises YamlError."""
        self._count += 1
        problem = None
        if self._count > MAX_VALUES:
            problem = f"more than {MAX_VALUES} values, aliases expanded"
        elif node in parents:
            problem = "an anchor contains itself"
        elif len(parents) > MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} levels deep, aliases expanded"
        elif node.tag not in (_PLAIN, _TEXT):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            problem = f"the tag {tag} is not used here; write plain values"
        if problem is not None:
            raise YamlError(problem, _mark(node.start_mark))


def _is_merge(key: yaml.Node) -> bool:
    return bool(key.tag == _PLAIN and key.value == _MERGE)


def plain_value(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    digits = text.replace("_", "")
    try:
        if match := _INTEGER.fullmatch(text):
            base = 0 if match.group(1)[1:2] in ("b", "o", "x") else 10
            return int(digits, base)
        if _FLOAT.fullmatch(text):
            return float(digits)
    except ValueError:
        return text  # more digits than Python converts
    if match := _NOT_FINITE.fullmatch(text):
        return float(match.group(1) + match.group(2))
    return text


def _mark(mark: Any) -> Mark:
    """The mark of the parser, which counts from 0; None is the beginning."""
    if mark is None:
        return Mark(1, 1)
    return Mark(mark.line + 1, mark.column + 1)


def _in_words(problem: str) -> str:
    """The parser's most common errors, reworded."""
    if "'\\t'" in problem:
        return "a tab cannot indent; use spaces"
    if "mapping values are not allowed here" in problem:
        return "a ':' where none can be; check the indentation, or put the text in quotes"
    if "could not find expected ':'" in problem:
        return "a key without ':'"
    if "found another document" in problem:
        return "one document is expected, but '---' begins another"
    return problem
