"""Sizes as a person writes and reads them."""

from __future__ import annotations

from gputui.core.yaml_forms.quantities import format_size, format_sizes, parse_size

GIB = 1 << 30


def test_a_size_has_the_unit_in_which_it_is_short() -> None:
    texts = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", (1 << 20) - 1: "1 MiB", 80 * GIB: "80 GiB"}
    assert {size: format_size(size) for size in texts} == texts
    for size, text in texts.items():
        read = parse_size(text)
        assert read is not None and abs(read - size) <= size / 1000, text


def test_two_sizes_that_differ_are_told_apart() -> None:
    texts = {
        (24 * GIB, 80 * GIB): ("24 GiB", "80 GiB"),
        (25757220864, 24 * GIB): ("23.99 GiB", "24 GiB"),
        (24 * GIB, 24 * GIB - 1): (f"{24 * GIB} B", f"{24 * GIB - 1} B"),
        (0, 0): ("0 B", "0 B"),
    }
    assert {pair: format_sizes(*pair) for pair in texts} == texts
