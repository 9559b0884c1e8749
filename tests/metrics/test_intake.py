"""What a person is told about metrics lines that do not count."""

from __future__ import annotations

import re
from pathlib import Path

from gputui.metrics.batch import EVENTS_WITH_METRICS
from gputui.metrics.intake_words import intake_words
from gputui.store.metrics import watched
from gputui.store.metrics.intake import Intake, intake
from tests.texts import mentions

from .conftest import RUN, Bench, line


def test_lines_without_a_step(bench: Bench) -> None:
    assert intake(bench.connection, RUN) == Intake() and intake_words(Intake()) is None
    bench.begin()
    bench.append('{"iter": 1, "loss": 2.5}\n')
    bench.pump()
    known = intake(bench.connection, RUN)
    assert mentions(intake_words(known), "only", "(no step)", '{"iter": 1, "loss": 2.5}')
    bench.append('{"iter": 2, "loss": 2.25}\n')
    bench.pump()
    words = intake_words(intake(bench.connection, RUN))
    assert mentions(words, "None", "2", "(no step)", '{"iter": 2, "loss": 2.25}')


def test_some_lines(bench: Bench) -> None:
    bench.begin()
    bench.append(line(1) + "garbage " * 40 + "\n" + line(2))
    bench.pump()
    words = intake_words(intake(bench.connection, RUN))
    assert words is not None and len(words) < 140
    assert mentions(words, "1 of 3", "(not a JSON object)", "garbage ") and words[-1] == "…"


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    patterns = [r"step (?P<step>\d+) loss (?P<loss>\S+)"]
    bench = Bench(tmp_path, kind="stdout", name="attempts/1/output.log", metrics={"patterns": patterns})
    bench.file.parent.mkdir(parents=True)
    bench.begin()
    assert intake_words(intake(bench.connection, RUN)) is None
    bench.append("iter 1 loss 2.5\n")
    bench.pump()
    # A script that begins prints something else first.
    assert intake_words(intake(bench.connection, RUN)) is None
    bench.connection.execute("UPDATE runs SET ended_at = 1.0")
    assert intake_words(intake(bench.connection, RUN)) is not None
    bench.append("step 2 loss 2.5\n")
    bench.pump()
    assert intake_words(intake(bench.connection, RUN)) is None


def test_a_run_that_succeeds_early(bench: Bench) -> None:
    bench.begin()
    bench.append('{"step": 4, "total_steps": 100, "loss": 0.5}\n')
    bench.pump()
    columns = "run_id, number, state, params, gpus, launch, created_at"
    bench.connection.execute(f"INSERT INTO attempts ({columns}) VALUES (?, 1, 'exited', '', '', '', 0)", (RUN,))
    for state, step, known in (("running", 4, None), ("succeeded", 4, (4, 100)), ("succeeded", 90, None)):
        bench.connection.execute("UPDATE runs SET state = ?, attempt = 1", (state,))
        bench.connection.execute("UPDATE attempts SET last_step = ?", (step,))
        assert intake(bench.connection, RUN).short_of == known
        assert (intake_words(intake(bench.connection, RUN)) is None) == (known is None)


def test_a_logger_that_names_each_message_event(bench: Bench) -> None:
    """structlog's JSON lines are steps like any other, so that a NaN is seen."""
    bench.begin()
    bench.append('{"step": 0, "event": "start", "total_steps": 300}\n')
    bench.append('{"event": "train", "level": "info", "step": 1, "loss": 0.5}\n')
    bench.append('{"event": "train", "level": "info", "step": 2, "loss": NaN}\n')
    bench.append('{"event": "checkpoint", "step": 2, "seconds": 1.5, "bytes": 7}\n')
    bench.append('{"event": "validation", "step": 2, "val/loss": 0.5}\n')
    bench.append('{"event": "epoch_end", "step": 2, "epoch": 1, "seconds": 60}\n')
    (progress,) = bench.pump().progress
    assert (progress.first_step, progress.last_step) == (1, 2)
    assert progress.events == {"start": 1, "checkpoint": 1, "validation": 1, "epoch_end": 1}
    seen, _ = watched.newest_lines(bench.connection, RUN, {}, 10)
    assert [line.step for line in seen if line.event is None and "loss" in line.values] == [1, 2]
    assert bench.data()[1] == {"event_": "train", "level": "info", "step": 1, "loss": 0.5}


def test_the_trainers_events_are_no_steps() -> None:
    text = (Path(__file__).parents[2] / "docs/trainer.md").read_text()
    table = text.split("| event | when | fields |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == EVENTS_WITH_METRICS
