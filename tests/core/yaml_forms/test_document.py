"""Reading YAML: what scalars mean, where things are, and texts that mean harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.core.yaml_forms.document import MAX_DEPTH, MAX_VALUES, Mark, YamlError, parse

DEEP_MERGES = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: *a{n - 1}}}" for n in range(1, 3 * MAX_DEPTH))])


def test_scalars() -> None:
    scalars: dict[str, object] = {
        "1e-3": 1e-3, "5E4": 5e4, "1.5": 1.5, ".5": 0.5, "-2.": -2.0, "+.inf": float("inf"),
        "7": 7, "-7": -7, "010": 10, "1_000": 1000, "0x1F": 31, "0o17": 15, "0b11": 3,
        "true": True, "Yes": True, "ON": True, "off": False, "No": False, "false": False,
        "~": None, "null": None, "": None,
        "1:30": "1:30", "2024-01-01": "2024-01-01", "1.2.3": "1.2.3", "y": "y", "n": "n", "e5": "e5",
        "'1'": "1", '"off"': "off", "!!str 5": "5",
        "0x": "0x", "9" * 5000: "9" * 5000,
    }  # fmt: skip
    values = {text: parse(f"k: {text}").data["k"] for text in scalars}
    assert {text: (type(value), value) for text, value in values.items()} == {
        text: (type(value), value) for text, value in scalars.items()
    }


def test_keys_are_text_and_literal_places_keep_their_spelling() -> None:
    assert parse("{on, 2, null, 1.10}").data == dict.fromkeys(("on", "2", "null", "1.10"))
    document = parse("env: {A: on, B: 1.10, C: 007, D:}\nx: on", lambda place: place[:1] == ("env",))
    assert document.data == {"env": {"A": "on", "B": "1.10", "C": "007", "D": ""}, "x": True}


def test_marks_are_where_keys_and_items_begin() -> None:
    document = parse("a:\n  b: 1\n  c:\n    - x\n    - y\n")
    assert document.mark(("a",)) == Mark(1, 1)
    assert document.mark(("a", "b")) == Mark(2, 3)
    assert document.mark(("a", "c", 1)) == Mark(5, 7)
    assert document.mark(("a", "unknown", "deeper")) == Mark(1, 1), "the closest thing around it"


def test_every_key_given_twice_is_known_and_the_first_counts() -> None:
    document = parse("a: 1\nb: {c: 1, c: 2}\na: 2\n")
    assert document.data == {"a": 1, "b": {"c": 1}}
    assert sorted(document.duplicates) == [(("a",), Mark(3, 1)), (("b", "c"), Mark(2, 11))]


def test_a_key_given_twice_in_a_merge_or_an_alias_is_known_once() -> None:
    duplicates = {
        "b:\n  <<: {k: 1, k: 2}\n": [(("b", "k"), Mark(2, 14))],
        "b:\n  <<: [{k: 1, k: 2}, {k: 3}]\n": [(("b", "k"), Mark(2, 15))],
        "a: &x {k: 1, k: 2}\nb: *x\nc: {<<: *x}\n": [(("a", "k"), Mark(1, 14))],
        "b: {<<: {k: 1}, <<: {j: 1}}\n": [(("b", "<<"), Mark(1, 17))],
        "b: {k: 1, '<<': 1, <<: {k: 3}}\n": [],
    }
    assert {text: parse(text).duplicates for text in duplicates} == duplicates


def test_anchors_and_merges() -> None:
    text = "base: &b {x: 1, y: 2}\nlist: &l [1, 2]\nuse: {<<: *b, y: 3}\nboth: {<<: [*b, {z: 9, x: 0}]}\nagain: *l\n"
    data = parse(text).data
    assert data["use"] == {"x": 1, "y": 3}
    assert data["both"] == {"x": 1, "y": 2, "z": 9}
    assert data["again"] == [1, 2]


def test_what_is_no_profile() -> None:
    mistakes = [
        ("a: b: c", 1, "':' where none can be"),
        ("x: 1\na: [1\nb: 2", 3, "not valid YAML"),
        ("a:\n\t- b", 2, "a tab cannot indent; use spaces"),
        ("a: 1\nb: 'open", 2, "not valid YAML"),
        ("a: 1\nb: \x01", 2, "U+0001 is not allowed"),
        ("a: 1\nb: \ud800", 2, "U+D800 is not allowed"),
        ("a: 1\nb: *gone", 2, "undefined alias 'gone'"),
        ("x: 1\na: &a\n  b: *a", 2, "an anchor contains itself"),
        ("a: &a\n  <<: *a", 1, "an anchor contains itself"),
        ("a: 1\n---\nb: 1", 2, "'---' begins another"),
        ("? [a]\n: b", 1, "a key must be a word"),
        ("a: 1\nb: !!python/object/apply:os.system [echo]", 2, "tag !!python/object/apply:os.system is not used"),
        ("a: !!binary aGk=", 1, "the tag !!binary is not used"),
        ("a: !custom {b: 1}", 1, "the tag !custom is not used"),
        ("<<: 3", 1, "<< takes a mapping"),
        ('a: 1\nb: "\\UFFFFFFFF"', None, "a number is too large"),
        (DEEP_MERGES, 1, f"more than {MAX_DEPTH} levels deep"),
        ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), 1, "levels deep"),
        ("[" * 1_000_000, None, "levels deep"),
        ("a:\n" + "- 1\n" * (MAX_VALUES + 1), MAX_VALUES, f"more than {MAX_VALUES} values"),
    ]
    wrong = []
    for text, line, message in mistakes:
        with pytest.raises(YamlError) as caught:
            parse(text)
        said = str(caught.value)
        mark = caught.value.mark
        if message not in said or "\n" in said or (mark and mark.line) != line:
            wrong.append((text[:40], line, message, said, mark))
    assert wrong == []


def test_aliases_cannot_explode() -> None:
    """Ten levels, each with ten of the one below: 10¹⁰ values if expanded."""
    for kind in ("[{0}]", "{{<<: [{0}]}}", "{{a: [{0}], <<: [{0}]}}"):
        lines = ["a0: &a0 {x: 1}"]
        for level in range(1, 11):
            lines.append(f"a{level}: &a{level} " + kind.format(", ".join([f"*a{level - 1}"] * 10)))
        with pytest.raises(YamlError, match="aliases expanded"):
            parse("\n".join(lines))


@given(st.text(max_size=200))
def test_any_text_is_answered(text: str) -> None:
    try:
        parse(text)
    except YamlError as error:
        assert "\n" not in str(error)
