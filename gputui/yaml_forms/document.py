"""YAML as plain data with the place of every key, from the nodes of `yaml.compose`.

Nothing is ever constructed from a tag, so that the text can only become text, numbers, booleans, null, lists and
mappings. Depth, size and the expansion of aliases are bounded. Scalars are read as YAML 1.1 does where a person would
be surprised otherwise (``off`` is false), and as YAML 1.2 does where 1.1 surprises: ``1e-3`` is a number, ``010`` is
ten, ``1:30`` and ``2024-01-01`` are text. Keys are always text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_VALUES = 10_000

KeyPath = tuple[str | int, ...]
"""Where a value is: keys and list positions from the top."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    spelling: value
    for word, value in {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.items()
    for spelling in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")
_STRING_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_PLAIN = "plain"
_MERGE = "<<"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the text; both count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Document:
    """``data`` as Python values, the mark of every key and list item, and the keys given twice (the first counts)."""

    data: Any
    marks: dict[KeyPath, Mark]
    duplicates: list[tuple[KeyPath, Mark]] = field(default_factory=list)

    def mark(self, place: KeyPath) -> Mark:
        """The mark of the value at ``place``, or of the closest thing around it."""
        while place and place not in self.marks:
            place = place[:-1]
        return self.marks.get(place, Mark(1, 1))


class YamlError(ValueError):
    """The text is no YAML that a profile can be. ``mark`` is None if the text as a whole is meant."""

    def __init__(self, text: str, mark: Mark | None) -> None:
        super().__init__(text)
        self.mark = mark


def parse(text: str, is_literal: Callable[[KeyPath], bool] = lambda _: False) -> Document:
    """Read one document. Values at places for which ``is_literal`` holds stay the text that was written, ``on`` and
    ``1.10`` included.

    Raises YamlError.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        raise YamlError(f"not valid YAML: the character U+{code:04X} is not allowed", Mark(line, 1)) from error
    except yaml.MarkedYAMLError as error:
        mark = _mark(error.problem_mark or error.context_mark)
        raise YamlError(f"not valid YAML: {_in_words(error.problem or error.context or '')}", mark) from error
    document = Document(None, {(): Mark(1, 1) if root is None else _mark(root.start_mark)})
    if root is not None:
        document.data = _Builder(document, is_literal).build(root, (), ())
    return document


class _Loader(yaml.SafeLoader):
    """Composes one document, with bounds on depth and number, and no tag but that of text."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._count = 0
        self._depth = 0

    def compose_document(self) -> yaml.Node | None:
        root = super().compose_document()
        following: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if not isinstance(following, yaml.StreamEndEvent):
            raise YamlError("one document is expected, but '---' begins another", _mark(following.start_mark))
        return root

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark = _mark(event.start_mark)
        self._count += 1
        if self._count > MAX_VALUES:
            raise YamlError(f"more than {MAX_VALUES} values", mark)
        if self._depth > MAX_DEPTH:
            raise YamlError(f"nested more than {MAX_DEPTH} levels deep", mark)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise YamlError(f"*{event.anchor} refers to an anchor that is not there", mark)
        elif event.tag is not None and not (isinstance(event, yaml.ScalarEvent) and event.tag in _STRING_TAGS):
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise YamlError(f"the tag {tag} is not used here; write plain values", mark)
        else:
            # An anchor may be given again; the newest counts.
            self.anchors.pop(event.anchor, None)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """A scalar's tag says whether it was written without quotes and tag; what it means says `plain_value`."""
        return _PLAIN if kind is yaml.ScalarNode and implicit[0] else "tag:yaml.org,2002:str"


class _Builder:
    """Nodes to data. Aliases are expanded here, so the bound on the number of values holds again."""

    def __init__(self, document: Document, is_literal: Callable[[KeyPath], bool]) -> None:
        self._document = document
        self._is_literal = is_literal
        self._count = 0

    def build(self, node: yaml.Node, place: KeyPath, around: tuple[yaml.Node, ...]) -> Any:
        self._spend(node)
        if node in around:
            raise YamlError("an anchor contains itself", _mark(node.start_mark))
        if len(around) > MAX_DEPTH:
            raise YamlError(f"its aliases nest more than {MAX_DEPTH} levels deep", _mark(node.start_mark))
        inside = (*around, node)
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.tag != _PLAIN or self._is_literal(place) else plain_value(node.value)
        if isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                self._document.marks[(*place, position)] = _mark(item.start_mark)
            return [self.build(item, (*place, position), inside) for position, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for key, value in self._merged(node, inside):
            if key.value not in values:
                self._document.marks[(*place, key.value)] = _mark(key.start_mark)
                values[key.value] = self.build(value, (*place, key.value), inside)
        own = set()
        for key, _ in node.value:
            if key.value in own:
                self._document.duplicates.append(((*place, key.value), _mark(key.start_mark)))
            own.add(key.value)
        return values

    def _merged(self, node: yaml.Node, around: tuple[yaml.Node, ...]) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """The mapping's own pairs, then those that ``<<`` takes from others, which never replace its own."""
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError("a key must be a word", _mark(key.start_mark))
        merges = [pair for pair in node.value if pair[0].tag == _PLAIN and pair[0].value == _MERGE]
        yield from (pair for pair in node.value if pair not in merges)
        for key, value in merges:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    raise YamlError("<< takes a mapping, or a list of mappings", _mark(key.start_mark))
                if source in around or len(around) > MAX_DEPTH:
                    raise YamlError("an anchor contains itself", _mark(key.start_mark))
                self._spend(source)
                yield from self._merged(source, (*around, source))

    def _spend(self, node: yaml.Node) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            raise YamlError(f"its aliases expand to more than {MAX_VALUES} values", _mark(node.start_mark))


def plain_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means."""
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    digits = text.replace("_", "")
    try:
        if match := _INTEGER.fullmatch(text):
            return int(digits, 0 if match.group(1)[1:2] in ("b", "o", "x") else 10)
        if _FLOAT.fullmatch(text):
            return float(digits)
    except ValueError:
        return text  # more digits than Python converts
    if match := _NOT_FINITE.fullmatch(text):
        return float(match.group(1) + match.group(2))
    return text


def _mark(mark: Any) -> Mark:
    """The parser's mark, which counts from 0; None is the beginning."""
    return Mark(1, 1) if mark is None else Mark(mark.line + 1, mark.column + 1)


def _in_words(problem: str) -> str:
    """The parser's words for the mistakes that are made most, in a person's words."""
    if "'\\t'" in problem:
        return "a tab cannot indent; use spaces"
    if "mapping values are not allowed here" in problem:
        return "a ':' where none can be; check the indentation, or put the text in quotes"
    if "could not find expected ':'" in problem:
        return "a key without ':'"
    return problem
