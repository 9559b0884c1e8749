"""A learned shape as the pattern of a profile reads the lines that it was learned from."""

from __future__ import annotations

import re

from gputui.metrics.contract import ParsedLine
from gputui.metrics.learning.patterns import profile_pattern
from gputui.metrics.learning.shapes import ShapeReader
from gputui.metrics.learning.whole_lines import split_prefix
from gputui.metrics.printed import OutputPatterns
from tests.metrics.learning.forms import FORMS
from tests.metrics.learning.watching import lines_of, output, watch
from tests.tables import table


def read(line: str, count: int = 9) -> list[dict[str, float]]:
    """What the pattern reads of lines that were learned, ``{s}`` and ``{v}`` being the step and a value."""
    text = "\n".join(line.format(s=step, v=round(1 / (step + 1), 4)) for step in range(1, count + 1))
    (shape,) = watch(text).reader.learned.shapes
    pattern = profile_pattern(shape)
    assert pattern is not None
    format_of = OutputPatterns([pattern])
    parsed = [format_of.parse(line.encode()) for line in text.splitlines()]
    return [dict(line.values) for line in parsed if isinstance(line, ParsedLine)]


@table(
    ("line", "names"),
    [
        ("step {s} loss {v}", {"step", "loss"}),
        ("iter {s}: loss {v}, time 12.3ms, mfu 4{s}.2%", {"step", "loss", "mfu"}),
        ("[{s}/9] train loss: {v} | val loss: {v}", {"step", "total_steps", "train_loss", "val_loss"}),
        ("Epoch 0 [{s}/9] Loss {v} (0.5)", {"step", "epoch", "Loss"}),
        ("2026-11-28 10:00:0{s} INFO step={s} Acc@1={v}", {"step", "acc_1"}),
    ],
)
def test_patterns(line: str, names: set[str]) -> None:
    records = read(line)
    assert len(records) == 9
    assert {name.lower() for name in records[-1]} == {name.lower() for name in names}
    assert [record["step"] for record in records] == list(range(1, 10))


def test_lines_that_only_count_have_none() -> None:
    text = "\n".join(f"Epoch {epoch}/9\n 36/36 - loss: 0.{epoch} - acc: 0.{epoch}5" for epoch in range(1, 9))
    shapes = watch(text).reader.learned.shapes
    assert [profile_pattern(shape) for shape in shapes if shape.is_source or shape.restarts] == [None] * len(shapes)


@table(
    ("line", "total"),
    [
        ("iter {s}/100, loss={v}, samples/s=200", 100),
        ("step {s}/100, loss={v}", 100),
        ("step={s} loss={v} tokens/s=996", None),
        ("step {s} loss {v} tok/s 944", None),
        ("step {s} loss: {v} samples/s: 9", None),
        ("step {s} loss {v} 944 tok/s", None),
        ("step {s} | 944.2 samples/s | loss {v}", None),
    ],
)
def test_a_rate_beside_a_loss(line: str, total: int | None) -> None:
    text = "\n".join(line.format(s=step, v=round(1 / step, 4)) for step in range(1, 30))
    records = watch(text).records
    assert [(record["step"], record.get("total_steps")) for record in records] == [(s, total) for s in range(1, 30)]
    assert records[-1]["loss"] == 0.0345
    expected = 3 if total else 2
    assert len(records[-1]) == expected


@table(
    ("line", "groups"),
    [
        ("loss {v} acc 0.{s}", None),
        ("epoch 3 test acc {v}", None),
        ("saw {n} docs ( 12 bad) loss {v} log loss: {v}", {"step", "loss", "log_loss"}),
    ],
)
def test_what_is_said_of_lines_that_are_not_stored(line: str, groups: set[str] | None) -> None:
    lines = [line.format(s=step, v=round(1 / step, 4), n=step * step) for step in range(1, 20)]
    (remark,) = watch("\n".join(lines)).reader.remarks
    _, is_pattern, pattern = remark.partition("patterns: ['")
    assert bool(is_pattern) == (groups is not None)
    if groups is not None:
        expression = re.compile(pattern.removesuffix("']}"))
        assert set(expression.groupindex) == groups
        assert OutputPatterns([expression.pattern])
        assert all(expression.search(text) for text in lines)


@table(
    ("lines", "is_said"),
    [
        (["step 1 loss 1.000"], True),
        (["Epoch 3/3: val_loss=0.25"], True),
        (["final accuracy: 0.91"], False),
        (["step 1", "done in 3.2 s"], False),
        (["best epoch 3 loss 0.5", *(f"step {step} loss {1 / step:.3f}" for step in range(1, 9))], False),
    ],
)
def test_a_line_without_another_of_its_form_is_said_where_nothing_is_learned(lines: list[str], is_said: bool) -> None:
    watched = watch("\n".join(lines))
    expected = 0 if len(lines) < 3 else 8
    assert len(watched.records) == expected
    assert len(watched.reader.remarks) == is_said
    for remark in watched.reader.remarks:
        _, _, pattern = remark.partition("patterns: ['")
        assert repr(lines[0]) in remark
        assert OutputPatterns([pattern.removesuffix("']}")]).parse(lines[0].encode()) is not None


@table("form", FORMS)
def test_a_pattern_that_is_offered_reads_the_lines_of_its_form(form: str) -> None:
    text = output(FORMS[form]())
    for shape in watch(text).reader.learned.shapes:
        pattern = profile_pattern(shape)
        if pattern is not None:
            reader = ShapeReader(shape)
            format_of = OutputPatterns([pattern])
            lines = [line for line in lines_of(text) if reader.match(split_prefix(line)[0]) is not None]
            read_lines = [line for line in lines if isinstance(format_of.parse(line.encode()), ParsedLine)]
            assert len(read_lines) >= 0.9 * len(lines), pattern
