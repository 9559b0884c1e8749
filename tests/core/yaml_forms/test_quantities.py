"""Sizes as a person writes them."""

from __future__ import annotations

from gputui.core.yaml_forms.quantities import parse_size


def test_a_size_has_a_unit() -> None:
    sizes = {"0 B": 0, "1.5 KiB": 1536, "1 MiB": 1 << 20, "80 GiB": 80 << 30, "1.5GB": 1_500_000_000, "80": None}
    assert {text: parse_size(text) for text in sizes} == sizes
