"""How grave lines of logs are."""

from __future__ import annotations

from gputui.runs.logs import Level, LevelReader
from tests.tables import table


@table("line, level", [
    ("step 12 loss 2.31", Level.INFO), ("error rate 0.12 after 3 epochs", Level.INFO),
    ("no warnings were met", Level.INFO), ("2026-11-21 03:12:44 WARNING loader is slow", Level.WARNING),
    ("W1121 03:12:30.123 torch/run.py:792] slow", Level.WARNING),
    ("[rank0]:[W227 10:54:51.980 ProcessGroupNCCL.cpp:1496] slow", Level.WARNING),
    ("[rank0]:[E227 10:54:51.980 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught a timeout", Level.ERROR),
    ("ws:11:12 [0] transport/net.cc:1 NCCL WARN Call to connect failed", Level.WARNING),
    ("/x/y.py:3: UserWarning: lr_scheduler.step() before optimizer.step()", Level.WARNING),
    ("E1121 03:12:30.123 torch/elastic] failed (exitcode: 1)", Level.ERROR),
    ("[rank1]: torch.OutOfMemoryError: CUDA out of memory.", Level.ERROR),
    ("ERROR: could not open the file", Level.ERROR), ("error: no such option", Level.ERROR),
    ("Segmentation fault (core dumped)", Level.ERROR),
])  # fmt: skip
def test_words_tell(line: str, level: Level) -> None:
    assert LevelReader().level(line) is level


def test_a_traceback_is_grave_as_a_whole_and_ends_with_its_exception() -> None:
    reader = LevelReader()
    lines = [
        "[rank0]: Traceback (most recent call last):",
        "[rank0]:   File 'train.py', line 3, in <module>",
        "[rank0]:     main()",
        "[rank0]: KeyboardInterrupt",
        "[rank0]: shutting down",
    ]
    assert [reader.level(line) for line in lines] == [Level.ERROR] * 4 + [Level.INFO]
    cut = ["Traceback (most recent call last):", "  File 'x'", "", "step 1"]
    assert [reader.level(line) for line in cut] == [Level.ERROR, Level.ERROR, Level.INFO, Level.INFO]
