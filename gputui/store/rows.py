"""Rows as records or mappings by the names of columns, JSON columns, inserts and updates."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

UNREADABLE: Mapping[str, Any] = MappingProxyType({})
"""Stands for a malformed JSON object; compare by identity."""


@lru_cache(maxsize=512)
def json_mapping(text: str | None) -> Mapping[str, Any]:
    """A column with a JSON object; UNREADABLE for anything else: one bad row breaks no view."""
    value = _parse(text)
    if isinstance(value, dict):
        return MappingProxyType(value)
    return UNREADABLE


@lru_cache(maxsize=512)
def json_items(text: str | None) -> tuple[Any, ...]:
    """A column with a JSON list; anything else is empty."""
    value = _parse(text)
    if isinstance(value, list):
        return tuple(value)
    return ()


def _json_dict(text: str | None) -> dict[str, Any]:
    """A new dict of its caller's own, where `json_mapping` shares one."""
    return dict(json_mapping(text))


def _parse(text: str | None) -> Any:
    try:
        if text is None:
            return None
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


Record = TypeVar("Record", bound=Struct)


def records(connection: sqlite3.Connection, kind: type[Record], query: str, *values: object) -> list[Record]:
    """The rows of a query, with ``values`` for its question marks, as records of ``kind``, by the
    names of columns; a column without a field is left out. JSON columns fill fields of mappings
    (read-only), dicts and tuples. Raises sqlite3.Error."""
    cursor = connection.execute(query, values)
    converters = _converters(kind)
    plain: list[tuple[str, int]] = []
    others: list[tuple[str, int, Callable[[Any], Any]]] = []
    for place, (name, *_) in enumerate(cursor.description):
        if name not in converters:
            continue
        convert = converters[name]
        if convert is None:
            plain.append((name, place))
        else:
            others.append((name, place, convert))
    return [
        kind(
            **{name: row[place] for name, place in plain},
            **{name: convert(row[place]) for name, place, convert in others},
        )
        for row in cursor.fetchall()
    ]


@cache
def _converters(kind: type[Struct]) -> dict[str, Callable[[Any], Any] | None]:
    """The function that makes each field's value from the column's; None if they are the same."""
    return {field.name: _converter(field.type) for field in msgspec.structs.fields(kind)}


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """The converter for a field of the type ``kind``, which may be optional."""
    options = (kind,)
    if get_origin(kind) in (Union, UnionType):
        options = get_args(kind)
    option = next(option for option in options if option is not NoneType)
    origin = get_origin(option) or option
    convert: Callable[[Any], Any]
    if origin is tuple:
        convert = json_items
    elif origin is Mapping:
        convert = json_mapping
    elif origin is dict:
        convert = _json_dict
    elif isinstance(origin, type) and (origin is bool or issubclass(origin, Enum)):
        convert = origin
    else:
        return None
    if NoneType not in options:
        return convert
    return lambda value: None if value is None else convert(value)


def named_rows(
    connection: sqlite3.Connection, query: str, parameters: Sequence[object] | Mapping[str, object] = ()
) -> list[dict[str, Any]]:
    """The rows of a query by the names of the columns. ``parameters`` fill its question marks in
    order, or its ``:names``. Raises sqlite3.Error."""
    # Not sqlite3.Row, which searches its names for every value.
    cursor = connection.execute(query, parameters)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def insert(
    connection: sqlite3.Connection,
    table: str,
    clash: Literal["ABORT", "IGNORE", "REPLACE"] = "ABORT",
    /,
    **values: object,
) -> int:
    """Insert a row of ``values`` by column and return its id, which means nothing for a row that is ignored.

    Args:
        clash: What happens if there is a row with the same key: an error, nothing, or the new row takes its place.

    Raises:
        sqlite3.Error: The row cannot be inserted.
    """
    marks = ", ".join(f":{name}" for name in values)
    statement = f"INSERT OR {clash} INTO {table} ({', '.join(values)}) VALUES ({marks})"  # noqa: S608 - names only
    return int(connection.execute(statement, values).lastrowid or 0)


def update(connection: sqlite3.Connection, table: str, key: Mapping[str, object], /, **values: object) -> None:
    """Set ``values`` in the row with this ``key``, both by column. Raises sqlite3.Error."""
    changes = ", ".join(f"{name} = ?" for name in values)
    where = " AND ".join(f"{name} = ?" for name in key)
    connection.execute(f"UPDATE {table} SET {changes} WHERE {where}", (*values.values(), *key.values()))  # noqa: S608
