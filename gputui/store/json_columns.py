"""JSON columns as cached values. Malformed JSON counts as unknown, so that a bad row never breaks a view."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

UNREADABLE: Mapping[str, Any] = MappingProxyType({})
"""Stands for a malformed object; compare by identity."""


@lru_cache(maxsize=512)
def mapping(text: str | None) -> Mapping[str, Any]:
    """A JSON object; UNREADABLE if it is anything else."""
    value = _parse(text)
    return MappingProxyType(value) if isinstance(value, dict) else UNREADABLE


@lru_cache(maxsize=512)
def items(text: str | None) -> tuple[Any, ...]:
    """A JSON list; anything else is empty."""
    value = _parse(text)
    return tuple(value) if isinstance(value, list) else ()


@lru_cache(maxsize=64)
def words(text: str | None) -> tuple[str, ...] | None:
    """A JSON list of words, None for NULL."""
    return None if text is None else tuple(str(word) for word in items(text))


def _parse(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
