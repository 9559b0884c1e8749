"""Scripts that know nothing of the contract: what they print, and CSV files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics.contract import ParsedLine, Rejected
from gputui.metrics.formats import CsvLines, JsonLines, MlflowLines, Reading
from gputui.metrics.learning import LearnedLines
from gputui.metrics.line_format import LineFormat
from gputui.metrics.printed import MAX_TIMEOUTS, OutputPatterns
from tests.tables import table
from tests.texts import mentions

from .conftest import RUN, MetricsHome

NANOGPT = r"iter (?P<iter>\d+): loss (?P<loss>\S+), time (?P<step_time_ms>\S+)ms"
EVALUATED = r"step (?P<step>\d+): train loss (?P<train_loss>[\d.]+), val loss (?P<val_loss>[\d.]+)"
EPOCH = r"Epoch (?P<epoch>\d+): val (?P<val_loss>\S+)"
PLACE = r"e(?P<epoch>\d+) i(?P<iter>\d+)(?:/(?P<total>\d+))?"
SECRETS = r"(?P<time>\d+) \[(?P<rank>\d)\] it(?P<step>\d+) loss=(?P<loss>\S+)( lr=(?P<lr>\S+))?"


def values(answer: object) -> dict[str, Any]:
    assert isinstance(answer, ParsedLine), answer
    assert json.loads(answer.data) == answer.values
    return dict(answer.values)


def csv(header: str | bytes, step: str | None = None) -> CsvLines:
    lines = CsvLines(step)
    lines.begin(header.encode() if isinstance(header, str) else header)
    return lines


def spec(launcher: str, *patterns: str) -> dict[str, Any]:
    return {"launcher": launcher, "metrics": {"kind": "stdout", "patterns": list(patterns)}}


@table(
    ("line_format", "line", "expected"),
    [
        (
            OutputPatterns([NANOGPT, EVALUATED]), "iter 10: loss 4.2281, time 120.51ms, mfu 1.2%",
            {"step": 10, "loss": 4.2281, "step_time_ms": 120.51},
        ),
        (
            OutputPatterns([NANOGPT, EVALUATED]), "step 250: train loss 2.5, val loss 2.625",
            {"step": 250, "train_loss": 2.5, "val_loss": 2.625},
        ),
        (OutputPatterns([NANOGPT]), "saving checkpoint to out", None),
        (
            OutputPatterns([NANOGPT]),
            "[default0]:\x1b[32miter\x1b[0m 7: loss \x1b[1;31m0.5\x1b[0m, time 3ms\x1b]0;title\x07",
            {"step": 7, "loss": 0.5, "step_time_ms": 3},
        ),
        (OutputPatterns([SECRETS]), "1700000000 [3] it5 loss=1", {"step": 5, "time": 1.7e9, "rank": 3, "loss": 1}),
        (OutputPatterns([r"step (?P<step>\S+)"]), "step one", "whole number"),
        (OutputPatterns([r"(a+)+b step (?P<step>\d+)|step (?P<iter>\d+)"]), "step 4 " + "x" * 900_000, {"step": 4}),
        (OutputPatterns([r"step (?P<step>\d+)"]), "x" * 900_000 + " step 4", None),
        (OutputPatterns([EPOCH], step="epoch"), "Epoch 4: val 0.25", {"step": 4, "epoch": 4, "val_loss": 0.25}),
        (
            OutputPatterns([r"(?P<epoch>\d+) (?P<step>\d+) (?P<loss>\S+)"], step="epoch"), "2 7 0.5",
            {"step": 2, "epoch": 2, "loss": 0.5},
        ),
        (
            OutputPatterns([r"step (?P<step>\d+) (?P<step_time>\S+) (?P<tokens>\S+)"], units={"step_time": 1e-3}),
            "step 1 20 5", {"step": 1, "step_time": 0.02, "tokens": 5},
        ),
        (MlflowLines("a/b"), "1795907012500 0.25 7", {"step": 7, "time": 1795907012.5, "a/b": 0.25}),
        (MlflowLines("loss"), "1795907012500 nan 7 data digest", {"step": 7, "time": 1795907012.5, "loss": "NaN"}),
        (MlflowLines("loss"), "1795907012500 0.25", "time, value and step"),
        (JsonLines("n"), '{"n": 5, "loss": 2.5}', {"step": 5, "n": 5, "loss": 2.5}),
        (JsonLines("n"), '{"step": 6, "loss": NaN}', {"step": 6, "loss": "NaN"}),
        (JsonLines("n"), '{"step": 3, "n": 13, "loss": NaN}', {"step": 13, "step_": 3, "n": 13, "loss": "NaN"}),
        (JsonLines("n"), '{"loss": 2.5}', "no step"),
        (csv("epoch,step,n,loss", "n"), "1,3,13,nan", {"step": 13, "n": 13, "epoch": 1, "loss": "NaN"}),
        (csv("   epoch,    loss", "epoch"), "   1,    0.5", {"step": 1, "epoch": 1, "loss": 0.5}),
        (csv("\ufeffStep,loss\r"), "3,0.5\r", {"step": 3, "loss": 0.5}),
        (csv("step,loss"), ' 4 , 0.25 ', {"step": 4, "loss": 0.25}),
        (csv("step,loss"), "step,loss", None),
        (csv("step,loss"), ",1", "whole number"),
        (csv("step,loss"), "1,2,3", "3 cells under a header of 2"),
        (csv("step,loss"), b"\xff,1", "comma-separated"),
        (csv("step,loss", "epoch"), "4,0.5", "epoch"),
        (csv("loss,accuracy"), "1,2", "step"),
        (csv("step;loss;lr"), "1;0,5312;1,0E-04", "commas"),
        (csv("step\tloss"), "1\t2", "commas"),
        (csv("step,loss\n".encode("utf-16")), "1,0.5\n".encode("utf-16-le"), "comma"),
        (csv("step,loss,note"), '1,0.5,"line one', "comma-separated"),
        (csv("step,loss,note"), 'line two"', "1 cells under a header of 3"),
    ],
)  # fmt: skip
def test_lines(line_format: LineFormat, line: str | bytes, expected: dict[str, Any] | str | None) -> None:
    answer = line_format.parse(line.encode() if isinstance(line, str) else line)
    if isinstance(expected, str):
        assert isinstance(answer, Rejected)
        assert expected in answer.reason
    else:
        assert (None if answer is None else values(answer)) == expected


@table(
    ("name", "text", "value"),
    [
        ("x", "1e-3", 0.001), ("x", "-2.5E+2,", -250.0), ("x", ".5", 0.5), ("x", "45%", 45), ("x", "nan,", "NaN"),
        ("x", "inf", "Infinity"), ("x", "-Inf", "-Infinity"), ("x", "1e999", "Infinity"), ("x", "n/a", "n/a"),
        ("x", "(0.5)", "(0.5)"), ("x", "12,029", 12029), ("x", "1,234,567.5,", 1234567.5), ("x", "0,531", "0,531"),
        ("x", "17.4ms", 0.0174), ("x", "17.4 ms", 0.0174), ("x", "1.2k", 1200.0), ("x", "3M,", 3e6),
        ("x", "2GiB", 2.0**31), ("x", "250MB/s", 2.5e8), ("rate", "30.5it/s", 30.5),
        ("rate", "2.00s/it", 0.5), ("step_time", "2.00s/it", 2.0), ("step_time", "4it/s", 0.25),
        ("rate", "0s/it", "0s/it"), ("rate", "12img/s", 12.0), ("x", "3parrots", 3),
        ("x", "0x1f", "0x1f"), ("x", "1e3ms", 1.0), ("x", "5m/x", "5m/x"),
    ],
)  # fmt: skip
def test_numbers_and_units_as_programs_print_them(name: str, text: str, value: float | str) -> None:
    number = values(OutputPatterns([rf"step (?P<step>\d+) (?P<{name}>.+)"]).parse(f"step 1 {text}".encode()))[name]
    assert number == value or (isinstance(value, float) and math.isclose(number, value))


def test_a_number_at_the_very_end_may_have_lost_digits() -> None:
    patterns = OutputPatterns([r"iter (?P<iter>\d+): loss (?P<loss>[\d.]+)"])
    assert isinstance(patterns.parse_unterminated(b"iter 3: loss 0.1"), Rejected)
    assert values(patterns.parse_unterminated(b"iter 3: loss 0.1 |###")) == {"step": 3, "loss": 0.1}
    assert patterns.parse_unterminated(b"iter 3: lo") is None


def test_patterns_that_cannot_be() -> None:
    for pattern in ["(?P<step>", "(?P<step>\\d+) (?P<step>\\d+)", "*"]:
        with pytest.raises(ValueError, match="metrics pattern 2 "):
            OutputPatterns([NANOGPT, pattern])
    for patterns, step in ([r"step (?P<step>\d+)"], "epoch"), ([EPOCH, "loss (?P<loss>.*)"], None):
        with pytest.raises(ValueError, match="no metrics pattern has a group named"):
            OutputPatterns(patterns, step)


def test_a_line_without_a_step_has_the_one_before() -> None:
    training = r"Training Epoch: (?P<epoch>\d+) \[(?P<iter>\d+)/(?P<total>\d+)\]\s+Loss: (?P<loss>\S+)"
    patterns = OutputPatterns([training, r"Test set: Epoch: (?P<epoch>\d+), Average loss: (?P<test_loss>[\d.]+)"])
    lines = [f"Training Epoch: {epoch} [{samples}/192]\tLoss: 4.6" for epoch in (1, 2) for samples in (64, 128, 192)]
    lines.insert(3, "Test set: Epoch: 1, Average loss: 0.0719, Accuracy: 0.0100")
    lines.append("Test set: Epoch: 2, Average loss: 0.0700, Accuracy: 0.0100")
    records = [values(patterns.parse(line.encode())) for line in lines]
    assert [line["step"] for line in records] == [64, 128, 192, 192, 256, 320, 384, 384]
    assert records[3] == {"step": 192, "epoch": 1, "test_loss": 0.0719}
    assert "loss" not in records[-1]
    first = OutputPatterns([NANOGPT, EPOCH, r"accuracy (?P<accuracy>\S+)"])
    assert isinstance(first.parse(b"accuracy 0.5"), Rejected)
    assert values(first.parse(b"Epoch 4: val 0.25"))["step"] == 4, "before any step its epoch"
    assert values(first.parse(b"accuracy 0.5")) == {"step": 4, "accuracy": 0.5}


def test_a_pattern_that_would_take_for_ever_is_cut_short_and_given_up() -> None:
    """The agent reads lines in its loop: nobody else may wait for one."""
    patterns = OutputPatterns([r"(?P<step>\d+)(?P<x>(a|a)+$)", r"step (?P<step>\d+) loss (?P<loss>\S+)"])
    assert isinstance(patterns.parse(b"step 1 loss 2.5"), ParsedLine)
    endless = b"1" + b"a" * 40 + b"!"
    assert [type(patterns.parse(endless)) for _ in range(MAX_TIMEOUTS)] == [Rejected] * MAX_TIMEOUTS
    assert patterns.parse(endless) is None
    assert patterns.parse(b"step 2 loss 2.5") is None


# --- files ------------------------------------------------------------------------------------------------------------


@table(("launcher", "name"), [("python", "output.log"), ("torchrun", "ranks/run.1_ab12/attempt_0/0/stdout.log")])
def test_each_attempt_has_its_own_output(tmp_path: Path, launcher: str, name: str) -> None:
    home = MetricsHome(tmp_path, kind="stdout", **spec(launcher, NANOGPT))
    for attempt in (1, 2):
        home.begin(attempt)
        home.pump()
        home.file = tmp_path / f"attempts/{attempt}" / name
        home.file.parent.mkdir(parents=True)
        home.append(f"starting\n iter 0: loss {attempt}, time 1ms\n\riter 1: loss 5, time 1ms")
        home.pump()
        # A new agent knows the patterns from the run's specification.
        home.restart()
        home.append("\riter 2: loss 6, time 1ms\r\niter 3: loss 7, time 1")
        home.ingest.finish(RUN)
    assert home.stored() == [(attempt, step) for attempt in (1, 2) for step in (0, 1, 2)]
    assert [row["loss"] for row in home.data()] == [1, 5, 6, 2, 5, 6]
    assert home.rejected() == []


@table(
    ("printed", "steps"),
    [
        ("e0 i0 e0 i1 e0 i2 e1 i0 e1 i2 e3 i1", [0, 1, 2, 3, 5, 10]),  # no total: the first epoch has three
        ("e1 i10 e1 i20 e2 i10 e2 i20", [10, 20, 30, 40]),
        ("e1 i1 e1 i2 e2 i3 e2 i4 e3 i5", [1, 2, 3, 4, 5]),  # counts on by itself
        ("e0 i4/10 e0 i9/10 e1 i4/10", [4, 9, 14]),
        ("e0 i9/10 e1 i11/10 e1 i19/10", [9, 11, 19]),  # passes its total
        ("e99999999999999999999 i9/10 e1 i9/10", [9]),
        ("e1 i4/10 e1 i9/10 e2 i4/10 e4 i0/10", [4, 9, 14, 30]),  # epochs from 1
        ("e0 i9/40 e1 i19/40 e2 i29/40 e3 i39/40", [9, 19, 29, 39]),
    ],
)
def test_places_within_epochs_count_on(tmp_path: Path, printed: str, steps: list[int]) -> None:
    numbers = printed.split()
    lines = [f"{epoch} {place}\n" for epoch, place in zip(numbers[::2], numbers[1::2], strict=True)]
    home = MetricsHome(tmp_path, kind="stdout", **spec("python", PLACE))
    for attempt, first in ((1, 0), (2, len(lines) - 1)):
        # What the lines of an epoch have shown outlives the reader and the attempt.
        home.begin(attempt)
        home.restart()
        home.print_to(attempt)
        home.append("".join(lines[first:]))
        home.ingest.finish(RUN)
    assert [step for _, step in home.stored()] == [*steps, steps[-1]]


@table("attempts, steps", [
    # Out of memory in the first epoch, then a smaller batch from the beginning, or from the third epoch.
    (["e1 i0/100 e1 i50/100", "e1 i0/200 e1 i50/200 e2 i20/200"], [0, 50, 0, 25, 110]),
    (["e1 i0/100 e1 i50/100", "e3 i0/125 e3 i50/125"], [0, 50, 200, 240]),
    # Without a total, the first attempt's first epoch counts all the same.
    (["e1 i0 e1 i50 e2 i0", "e2 i50 e3 i0"], [0, 50, 100, 150, 200]),
    (["e3 i5/10", "e1 i5/10"], [25, 5]),
])  # fmt: skip
def test_all_attempts_count_epochs_on_one_scale(tmp_path: Path, attempts: list[str], steps: list[int]) -> None:
    home = MetricsHome(tmp_path, kind="stdout", **spec("python", PLACE))
    for number, printed in enumerate(attempts, 1):
        numbers = printed.split()
        home.begin(number)
        home.restart()
        home.print_to(number)
        for epoch, place in zip(numbers[::2], numbers[1::2], strict=True):
            home.append(f"{epoch} {place}\n")
            home.pump()
        home.ingest.finish(RUN)
    assert [step for _, step in home.stored()] == steps


@table(("places", "is_said"), [
    ("e1 i50/100 e2 i50/100 e3 i50/100", False), ("e1 i50/100 e2 i25/50 e3 i25/50", True),
    ("e1 i50/100 e1 i9/10 e2 i50/100 e2 i9/10 e3 i50/100 e3 i9/10", False),  # a validation
])  # fmt: skip
def test_converted_steps_are_said_once(tmp_path: Path, places: str, is_said: bool) -> None:
    home = MetricsHome(tmp_path, kind="stdout", **spec("python", PLACE))
    home.begin(1)
    home.print_to(1)
    numbers = places.split()
    home.append("".join(f"{epoch} {place}\n" for epoch, place in zip(numbers[::2], numbers[1::2], strict=True)))
    assert sum("instead of 100" in note for note in home.notes()) == is_said


def test_converted_steps_of_learned_lines_are_said() -> None:
    lines = [
        f"Epoch {epoch} [{place}/{total}] loss 0.{epoch}{place}"
        for epoch, total in ((1, 100), (2, 50), (3, 50))
        for place in (10, 20, 40)
    ]
    learning = LearnedLines()
    for line in lines:
        learning.parse(line.encode())
    reader = learning.restarted()
    for line in lines:
        reader.parse(line.encode())
    assert "instead of 100" in (reader.remark or "")


def test_several_sources(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, kind="csv", name="a.csv", **spec("python", NANOGPT))
    home.ingest.open_source(RUN, str(tmp_path), "output", Reading((NANOGPT,)))
    home.ingest.open_source(RUN, str(tmp_path / "b.jsonl"), "jsonl", Reading(step="n"))
    home.append("step,accuracy\n")
    for attempt in (1, 2):
        home.begin(attempt)
        (tmp_path / f"attempts/{attempt}").mkdir(parents=True)
        (tmp_path / f"attempts/{attempt}/output.log").write_text(f"iter {attempt}: loss 0.5, time 1ms\n")
        home.append(f"{attempt + 2},0.25\n")
        with (tmp_path / "b.jsonl").open("a") as file:
            file.write(f'{{"n": {attempt + 4}, "lr": 0.5}}\n')
        home.restart()
        home.pump()
    assert sorted(home.stored()) == [(1, 1), (1, 3), (1, 5), (2, 2), (2, 4), (2, 6)]


def test_a_progress_bar_without_newlines_is_read_as_it_goes(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, kind="stdout", **spec("python", NANOGPT))
    home.begin()
    home.print_to(1)
    for start in range(0, 30_000, 10_000):
        home.append("".join(f"\riter {step}: loss 0.5, time 3ms" for step in range(start, start + 10_000)))
        home.pump()
    assert len(home.stored()) == 30_000 - 1
    assert home.ingest.finish(RUN).lines == 1


def test_csv(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, kind="csv", name="metrics.csv")
    home.begin()
    home.append('epoch,step,train_loss,val/acc,note\n0,0,2.5,,\n0,10,1.5,0.25,"a, b"\n')
    home.pump()
    home.restart()
    home.append("1,20,nan,,\n1,twenty,1,,\n1,30\n\n")
    home.begin(2)
    home.append("epoch,step,train_loss,val/acc,note\n1,40,1.0,,\n2,50,0.")
    home.ingest.finish(RUN)
    assert home.data() == [
        {"step": 0, "epoch": 0, "train_loss": 2.5},
        {"step": 10, "epoch": 0, "train_loss": 1.5, "val/acc": 0.25, "note": "a, b"},
        {"step": 20, "epoch": 1, "train_loss": "NaN"},
        {"step": 40, "epoch": 1, "train_loss": 1.0},
    ]
    assert [attempt for attempt, _ in home.stored()] == [1, 1, 1, 2]
    no_step, short, cut = (reason for _, reason in home.rejected())
    assert "step" in no_step
    assert mentions(short, "2 cells", "5")
    assert mentions(cut, "cut off", "3 cells", "5")


@pytest.mark.parametrize("header", ["step,lr,loss", "epoch,step,lr,loss"])
def test_a_csv_file_continued_under_another_header(tmp_path: Path, header: str) -> None:
    home = MetricsHome(tmp_path, kind="csv", name="metrics.csv")
    home.begin()
    home.append("step,loss,acc\n1,0.5,0.75\n")
    home.pump()
    home.begin(2)
    row = {"step": "{step}", "lr": "0.25", "loss": "0.125", "epoch": "1"}
    rows = [",".join(row[name] for name in header.split(",")).format(step=step) + "\n" for step in (2, 3, 4)]
    home.append(f"{header}\n{rows[0]}")
    home.pump()
    home.restart()
    home.append(rows[1])
    home.pump()
    assert [(data["step"], data["loss"], data.get("lr")) for data in home.data()] == [
        (1, 0.5, None), (2, 0.125, 0.25), (3, 0.125, 0.25)
    ]  # fmt: skip
    # The file is written again, with one line more.
    home.restart()
    content = home.file.read_text()
    home.file.unlink()
    home.file.write_text(content + rows[2])
    home.pump()
    assert home.stored() == [(1, 1), (2, 2), (2, 3), (2, 4)]
    assert home.counts() == (4, 0)


def test_a_file_of_its_own_for_each_start(tmp_path: Path) -> None:
    """Lightning counts up version_N."""
    home = MetricsHome(tmp_path, kind="csv", name="logs/version_*/metrics.csv")
    # The third repeats what the second computed.
    texts = ("5,0.5\n10,0.25\n15,0.125\n", "15,0.125\n20,0.5\n", "15,0.125\n20,0.5\n25,1\n")
    for attempt, lines in enumerate(texts, 1):
        home.begin(attempt)
        home.pump()
        home.file = tmp_path / f"logs/version_{attempt}" / "metrics.csv"
        home.file.parent.mkdir(parents=True)
        home.append("step,loss\n")
        home.pump()
        home.restart()
        home.append(lines[:9])
        home.pump()
        home.append(lines[9:])
        home.pump()
        home.ingest.finish(RUN)
    assert home.stored() == [(1, 5), (1, 10), (1, 15), (2, 15), (2, 20), (3, 15), (3, 20), (3, 25)]
