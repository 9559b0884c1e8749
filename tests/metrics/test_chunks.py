"""What is stored depends on the bytes alone: not on how they arrived, nor on when an agent was replaced."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics import batch, contract

from .conftest import RUN, Bench, line

PATTERNS = [r"iter (?P<iter>\d+): loss (?P<loss>\S+)"]

jsonl_pieces = st.sampled_from(
    [
        line(1).encode(), line(2, rank=1, time=5.0).encode(), b'{"step": 3, "loss": NaN}\n', b'{"event": "epoch"}\r\n',
        b"\n", b"\r\n", b"junk\n", b"\xff\xfe\n", b"\0\0\0", b'{"step": 4', b"}", b"\n\n", b"x" * 300 + b"\n",
        b"y" * 299, b'{"step": 9, "x": "' + b"z" * 275 + b'"}\n', "é".encode() * 3,
    ]
)  # fmt: skip
output_pieces = st.sampled_from(
    [b"iter 1: loss 0.5\n", b"\riter 2: loss 0.25", b"\r", b"\r\n", b"\x1b[31miter 3: loss nan\x1b[0m\n", b"noise\n",
     b"iter 4: lo", b"ss 0.125 (12 %)", b"\n", b"w" * 400]
)  # fmt: skip
csv_pieces = st.sampled_from(
    [b"1,0.5,\n", b"2,,x\n", b"3\n", b'4,"0.5",1\r\n', b"step,loss,note\n", b"5,0.2", b"\n", b"\xff\n"]
)

Rows = list[list[tuple[object, ...]]]


def stored(connection: sqlite3.Connection) -> Rows:
    queries = [
        "SELECT generation, byte_offset, attempt, rank, step, at, data FROM metrics ORDER BY 1, 2",
        "SELECT generation, byte_offset, attempt, length_bytes, reason, excerpt FROM rejected_lines ORDER BY 1, 2",
        "SELECT attempt, rank, data FROM metric_newest ORDER BY 1, 2",
        "SELECT generation, byte_offset, skipping, fingerprint, line_count, rejected_count FROM metric_sources "
        "WHERE format != 'stdout'",
    ]
    return [connection.execute(query).fetchall() for query in queries]


def outcome(kind: str, attempts: list[bytes], cuts: list[int], budget: int, restarts: bool) -> Rows:
    """The rows after the attempts' bytes were appended in chunks of the given lengths, with a look after each."""
    with tempfile.TemporaryDirectory() as folder:
        patterns = PATTERNS if kind == "stdout" else []
        bench = Bench(Path(folder), kind=kind, in_memory=True, metrics={"patterns": patterns})
        if kind == "csv":
            bench.append("step,loss,note\n")
        for number, content in enumerate(attempts, 1):
            bench.begin(number)
            if kind == "stdout":
                bench.file = bench.folder / f"attempts/{number}/output.log"
                bench.file.parent.mkdir(parents=True)
            lengths = iter(cuts)
            while content:
                size = next(lengths, len(content))
                bench.append(content[:size])
                content = content[size:]
                bench.ingest.pump(budget_bytes=budget)
                if restarts:
                    bench.restart()
            bench.ingest.finish(RUN)
        rows = stored(bench.connection)
        bench.ingest.close()
        bench.connection.close()
        return rows


def check_chunks(kind: str, attempts: list[list[bytes]], cuts: list[int], budget: int, restarts: bool) -> None:
    whole = [b"".join(pieces) for pieces in attempts]
    longest, most = contract.MAX_LINE_BYTES, batch.BATCH_LINES
    from gputui.metrics import tailer

    # A shorter limit and smaller batches, so that over-long lines and full batches are tried as well.
    tailer.MAX_LINE_BYTES, tailer.BATCH_LINES, tailer.BATCH_BYTES = 298, 3, 200
    try:
        assert outcome(kind, whole, cuts, budget, restarts) == outcome(kind, whole, [], 1 << 20, False)
    finally:
        tailer.MAX_LINE_BYTES, tailer.BATCH_LINES, tailer.BATCH_BYTES = longest, most, batch.BATCH_BYTES


cut_lengths = st.lists(st.integers(1, 400), max_size=30)
budgets = st.sampled_from([1, 50, 1 << 20])


@given(st.lists(st.lists(jsonl_pieces, max_size=12), min_size=1, max_size=3), cut_lengths, budgets, st.booleans())
def test_json_lines(attempts: list[list[bytes]], cuts: list[int], budget: int, restarts: bool) -> None:
    check_chunks("jsonl", attempts, cuts, budget, restarts)


@given(st.lists(st.lists(output_pieces, max_size=12), min_size=1, max_size=3), cut_lengths, budgets, st.booleans())
def test_output(attempts: list[list[bytes]], cuts: list[int], budget: int, restarts: bool) -> None:
    check_chunks("stdout", attempts, cuts, budget, restarts)


@given(st.lists(st.lists(csv_pieces, max_size=12), min_size=1, max_size=3), cut_lengths, budgets, st.booleans())
def test_csv(attempts: list[list[bytes]], cuts: list[int], budget: int, restarts: bool) -> None:
    check_chunks("csv", attempts, cuts, budget, restarts)
