"""Sizes as a person writes and reads them."""

from __future__ import annotations

import pytest

from gputui.yaml_forms.quantities import format_size, format_sizes, parse_size

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (80 * GIB, "80 GiB"),
    ],
)
def test_a_size_has_the_unit_in_which_it_is_short(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text
    read = parse_size(text)
    assert read is not None and abs(read - size_bytes) <= size_bytes / 1000


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (24 * GIB, 80 * GIB, ("24 GiB", "80 GiB")),
        (25757220864, 24 * GIB, ("23.99 GiB", "24 GiB")),
        (24 * GIB, 24 * GIB - 1, (f"{24 * GIB} B", f"{24 * GIB - 1} B")),
        (0, 0, ("0 B", "0 B")),
    ],
)
def test_two_sizes_that_differ_are_told_apart(one: int, other: int, texts: tuple[str, str]) -> None:
    assert format_sizes(one, other) == texts
