"""Scripts that know nothing of the contract: what they print, and CSV files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics.contract import ParsedLine, Rejected
from gputui.metrics.formats import CsvLines, OutputPatterns

from .conftest import RUN, Bench

NANOGPT = r"iter (?P<iter>\d+): loss (?P<loss>\S+), time (?P<step_time_ms>\S+)ms"
EVALUATED = r"step (?P<step>\d+): train loss (?P<train_loss>[\d.]+), val loss (?P<val_loss>[\d.]+)"


def values(answer: object) -> dict[str, Any]:
    assert isinstance(answer, ParsedLine), answer
    assert json.loads(answer.data) == answer.values
    return dict(answer.values)


def test_lines_of_a_training_script() -> None:
    patterns = OutputPatterns([NANOGPT, EVALUATED])
    assert values(patterns.parse(b"iter 10: loss 4.2281, time 120.51ms, mfu 1.2%")) == {
        "step": 10, "loss": 4.2281, "step_time_ms": 120.51,
    }  # fmt: skip
    assert values(patterns.parse(b"step 250: train loss 2.5, val loss 2.625")) == {
        "step": 250, "train_loss": 2.5, "val_loss": 2.625,
    }  # fmt: skip
    assert patterns.parse(b"saving checkpoint to out") is None
    assert patterns.parse(b"\xff\xfe\x00") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("-2.5E+2,", -250.0), (".5", 0.5), ("7", 7), ("45%", 45), ("nan,", "NaN"), ("inf", "Infinity"),
     ("-Inf", "-Infinity"), ("1e999", "Infinity"), ("n/a", "n/a"), ("(0.5)", "(0.5)")],
)  # fmt: skip
def test_numbers_as_programs_print_them(text: str, value: object) -> None:
    answer = OutputPatterns([r"iteration=(?P<iteration>\d+) x=(?P<x>\S+)"]).parse(f"iteration=3 x={text}".encode())
    assert values(answer) == {"step": 3, "x": value}


def test_colours_and_prefixes_are_no_obstacle() -> None:
    patterns = OutputPatterns([NANOGPT])
    line = b"[default0]:\x1b[32miter\x1b[0m 7: loss \x1b[1;31m0.5\x1b[0m, time 3ms\x1b]0;title\x07"
    assert values(patterns.parse(line)) == {"step": 7, "loss": 0.5, "step_time_ms": 3}


def test_optional_groups_and_time_and_rank() -> None:
    patterns = OutputPatterns([r"(?P<time>\d+) \[(?P<rank>\d)\] it(?P<step>\d+) loss=(?P<loss>\S+)( lr=(?P<lr>\S+))?"])
    answer = patterns.parse(b"1700000000 [3] it5 loss=1")
    assert isinstance(answer, ParsedLine)
    assert (answer.step, answer.time, answer.rank) == (5, 1700000000.0, 3)
    assert "lr" not in answer.values


def test_a_step_that_is_no_number_is_told() -> None:
    assert OutputPatterns([r"step (?P<step>\S+)"]).parse(b"step one") == Rejected("step is not a whole number")


def test_a_number_at_the_very_end_may_have_lost_digits() -> None:
    patterns = OutputPatterns([r"iter (?P<iter>\d+): loss (?P<loss>[\d.]+)"])
    assert isinstance(patterns.parse_unterminated(b"iter 3: loss 0.1"), Rejected)
    assert values(patterns.parse_unterminated(b"iter 3: loss 0.1 |###")) == {"step": 3, "loss": 0.1}
    assert patterns.parse_unterminated(b"iter 3: lo") is None


def test_a_bad_pattern_meets_only_the_beginning_of_a_line() -> None:
    patterns = OutputPatterns([r"(a+)+b step (?P<step>\d+)|step (?P<iter>\d+)"])
    assert values(patterns.parse(b"step 4 " + b"x" * 900_000)) == {"step": 4}
    assert patterns.parse(b"x" * 900_000 + b" step 4") is None


@pytest.mark.parametrize("pattern", ["(?P<step>", "loss (?P<loss>.*)", "(?P<step>\\d+) (?P<step>\\d+)", "*"])
def test_patterns_that_cannot_be(pattern: str) -> None:
    with pytest.raises(ValueError, match="metrics pattern 2 "):
        OutputPatterns([NANOGPT, pattern])


def spec(launcher: str, *patterns: str) -> dict[str, Any]:
    return {"launcher": launcher, "metrics": {"kind": "stdout", "patterns": list(patterns)}}


@pytest.mark.parametrize(
    ("launcher", "name"), [("python", "output.log"), ("torchrun", "ranks/run.1_ab12/attempt_0/0/stdout.log")]
)
def test_each_attempt_has_its_own_output(tmp_path: Path, launcher: str, name: str) -> None:
    bench = Bench(tmp_path, kind="stdout", **spec(launcher, NANOGPT))
    for attempt in (1, 2):
        bench.begin(attempt)
        bench.pump()
        bench.file = tmp_path / f"attempts/{attempt}" / name
        bench.file.parent.mkdir(parents=True)
        bench.append(f"starting\n iter 0: loss {attempt}, time 1ms\n\riter 1: loss 5, time 1ms")
        bench.pump()
        # A new agent knows the patterns from the run's specification.
        bench.restart()
        bench.append("\riter 2: loss 6, time 1ms\r\niter 3: loss 7, time 1")
        bench.ingest.finish(RUN)
    assert bench.stored() == [(attempt, step) for attempt in (1, 2) for step in (0, 1, 2)]
    assert [row["loss"] for row in bench.data()] == [1, 5, 6, 2, 5, 6]
    assert bench.rejected() == []


def test_a_progress_bar_without_newlines_is_read_as_it_goes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, kind="stdout", **spec("python", NANOGPT))
    bench.begin()
    bench.file = tmp_path / "attempts/1/output.log"
    bench.file.parent.mkdir(parents=True)
    for start in range(0, 60_000, 10_000):
        bench.append("".join(f"\riter {step}: loss 0.5, time 3ms" for step in range(start, start + 10_000)))
        bench.pump()
    assert len(bench.stored()) == 60_000 - 1
    assert bench.ingest.finish(RUN).lines == 1


def test_csv(tmp_path: Path) -> None:
    bench = Bench(tmp_path, kind="csv", name="metrics.csv")
    bench.begin()
    bench.append('epoch,step,train_loss,val/acc,note\n0,0,2.5,,\n0,10,1.5,0.25,"a, b"\n')
    bench.pump()
    bench.restart()
    bench.append("1,20,nan,,\n1,twenty,1,,\n1,30\n\n")
    bench.begin(2)
    bench.append("epoch,step,train_loss,val/acc,note\n1,40,1.0,,\n2,50,0.")
    bench.ingest.finish(RUN)
    assert bench.data() == [
        {"step": 0, "epoch": 0, "train_loss": 2.5},
        {"step": 10, "epoch": 0, "train_loss": 1.5, "val/acc": 0.25, "note": "a, b"},
        {"step": 20, "epoch": 1, "train_loss": "NaN"},
        {"step": 40, "epoch": 1, "train_loss": 1.0},
    ]
    assert [attempt for attempt, _ in bench.stored()] == [1, 1, 1, 2]
    assert [reason for _, reason in bench.rejected()] == [
        "step is not a whole number", "2 cells under a header of 5", "cut off: 3 cells under a header of 5",
    ]  # fmt: skip


def test_a_csv_file_begun_anew_has_its_own_header(tmp_path: Path) -> None:
    bench = Bench(tmp_path, kind="csv", name="metrics.csv")
    bench.begin()
    bench.append("step,loss\n1,0.5\n")
    bench.pump()
    bench.file.write_text("iter,accuracy,loss\n1,0.75,0.25\n2,1,0.125\n")
    bench.pump()
    assert bench.data()[1:] == [{"step": 1, "accuracy": 0.75, "loss": 0.25}, {"step": 2, "accuracy": 1, "loss": 0.125}]


def test_csv_lines_that_cannot_be_read() -> None:
    lines = CsvLines()
    lines.begin(b"loss,accuracy")
    assert isinstance(lines.parse(b"1,2"), Rejected)
    lines.begin("\ufeffStep,loss\r".encode())
    assert values(lines.parse(b"3,0.5\r")) == {"step": 3, "loss": 0.5}
    assert isinstance(lines.parse(b"\xff,1"), Rejected)
    assert isinstance(lines.parse(b'"open,1'), Rejected)
    assert isinstance(lines.parse(b",1"), Rejected)
    assert math.isclose(values(lines.parse(b" 4 , 0.25 "))["loss"], 0.25)
