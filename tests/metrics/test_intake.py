"""What a person is told about metrics lines that do not count."""

from __future__ import annotations

from pathlib import Path

from gputui.metrics.intake_words import intake_words
from gputui.store.metrics.intake import Intake, intake

from .conftest import RUN, Bench, line


def test_lines_without_a_step(bench: Bench) -> None:
    assert intake(bench.connection, RUN) == Intake() and intake_words(Intake()) is None
    bench.begin()
    bench.append('{"iter": 1, "loss": 2.5}\n')
    bench.pump()
    known = intake(bench.connection, RUN)
    assert intake_words(known) == 'The only metrics line so far could not be used (no step): {"iter": 1, "loss": 2.5}'
    bench.append('{"iter": 2, "loss": 2.25}\n')
    bench.pump()
    words = intake_words(intake(bench.connection, RUN))
    assert words == 'None of the 2 metrics lines so far could be used (no step): {"iter": 2, "loss": 2.25}'


def test_some_lines(bench: Bench) -> None:
    bench.begin()
    bench.append(line(1) + "garbage " * 40 + "\n" + line(2))
    bench.pump()
    words = intake_words(intake(bench.connection, RUN))
    assert words is not None and len(words) < 140
    assert words.startswith("1 of 3 metrics lines could not be used (not a JSON object): garbage ") and words[-1] == "…"


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    patterns = [r"step (?P<step>\d+) loss (?P<loss>\S+)"]
    bench = Bench(tmp_path, kind="stdout", name="attempts/1/output.log", metrics={"patterns": patterns})
    bench.file.parent.mkdir(parents=True)
    bench.begin()
    assert intake_words(intake(bench.connection, RUN)) is None
    bench.append("iter 1 loss 2.5\n")
    bench.pump()
    words = intake_words(intake(bench.connection, RUN))
    assert words == "Nothing printed so far matches the metrics patterns of its profile"
    bench.append("step 2 loss 2.5\n")
    bench.pump()
    assert intake_words(intake(bench.connection, RUN)) is None
