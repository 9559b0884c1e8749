"""Stored lines depend on the bytes alone: not on how they arrived, nor on when an agent was
replaced or killed."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics import segments
from gputui.metrics.ingest import MetricsIngest

from .conftest import RUN, MetricsHome, line

PATTERNS = [r"iter (?P<iter>\d+): loss (?P<loss>\S+)"]
PIECES = {
    "jsonl": [
        line(1).encode(), line(2, rank=1, time=5.0).encode(), b'{"step": 3, "loss": NaN}\n', b'{"event": "epoch"}\r\n',
        b"\n", b"\r\n", b"junk\n", b"\xff\xfe\n", b"\0\0\0", b'{"step": 4', b"}", b"\n\n", b"x" * 300 + b"\n",
        b"y" * 299, b'{"step": 9, "x": "' + b"z" * 275 + b'"}\n', "é".encode() * 3,
    ],
    "stdout": [
        b"iter 1: loss 0.5\n", b"\riter 2: loss 0.25", b"\r", b"\r\n", b"\x1b[31miter 3: loss nan\x1b[0m\n",
        b"noise\n", b"iter 4: lo", b"ss 0.125 (12 %)", b"\n", b"w" * 400,
    ],
    "csv": [b"1,0.5,\n", b"2,,x\n", b"3\n", b'4,"0.5",1\r\n', b"step,loss,note\n", b"5,0.2", b"\n", b"\xff\n"],
}  # fmt: skip

Rows = list[list[tuple[object, ...]]]

INGEST = """
import sys, time
from pathlib import Path
from gputui.metrics.ingest import MetricsIngest
from gputui.store.database import open_writer
ingest = MetricsIngest(open_writer(Path(sys.argv[1])))
print("up", flush=True)
while True:
    if not ingest.pump(0.005).more:
        time.sleep(0.001)
"""

# Pieces of random length, so that lines arrive in parts; now and then a broken line, a rotation, a very long line, or
# the whole file written again.
WRITE = r"""
import json, os, random, sys, time
path, seed, count, how, begun = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
dice = random.Random(seed)
step, renamed, pending, changed, whole = 0, 0, b"", 0.0, b""
file = open(path, "ab", 0)
while step < count or pending:
    if len(pending) < 4000 and step < count:
        for _ in range(200):
            pending += json.dumps({"step": step, "loss": dice.random()}).encode() + b"\n"
            step += 1
        if how != "rewrite" and dice.random() < 0.2:
            pending += b"broken\n" + b"x" * dice.choice([10, 3_000_000]) + b"\n"
    size = dice.randint(1, 30_000)
    # A file that is renamed before any of it was read belongs to no attempt: nobody knows which one wrote it.
    changes = how != "append" and time.time() - changed > 0.03 and os.path.exists(begun)
    if changes:
        changed = time.time()
        size = pending.find(b"\n", size) + 1 or len(pending)
    file.write(pending[:size])
    whole += pending[:size]
    pending = pending[size:]
    if changes and how == "rotate":
        renamed += 1
        os.rename(path, f"{path}.{renamed}")
        file.close()
        file = open(path, "ab", 0)
    elif changes:
        # With a line more at its head, so that it is no copy.
        renamed += 1
        whole = b'{"event": "epoch", "number": %d}\n' % renamed + whole
        file.truncate(0)
        file.write(whole)
    time.sleep(dice.random() * 0.004)
"""

attempts_of = st.sampled_from(list(PIECES)).flatmap(
    lambda kind: st.tuples(
        st.just(kind), st.lists(st.lists(st.sampled_from(PIECES[kind]), max_size=12), min_size=1, max_size=3)
    )
)


def stored(connection: sqlite3.Connection) -> Rows:
    queries = [
        "SELECT generation, byte_offset, attempt, rank, step, at, data FROM metrics ORDER BY 1, 2",
        "SELECT generation, byte_offset, attempt, reason, excerpt FROM rejected_lines ORDER BY 1, 2",
        "SELECT attempt, rank, data FROM metric_newest ORDER BY 1, 2",
        "SELECT generation, byte_offset, skipping, fingerprint, line_count, rejected_count FROM metric_sources "
        "WHERE format != 'stdout'",
    ]
    return [connection.execute(query).fetchall() for query in queries]


def outcome(kind: str, attempts: list[bytes], cuts: list[int], restarts: bool) -> Rows:
    """The rows after the attempts' bytes were appended in chunks of the given lengths, with a look after each."""
    with tempfile.TemporaryDirectory() as folder:
        patterns = PATTERNS if kind == "stdout" else []
        home = MetricsHome(Path(folder), kind=kind, in_memory=True, metrics={"patterns": patterns})
        if kind == "csv":
            home.append("step,loss,note\n")
        for number, content in enumerate(attempts, 1):
            home.begin(number)
            if kind == "stdout":
                home.print_to(number)
            lengths = iter(cuts)
            while content:
                size = next(lengths, len(content))
                home.append(content[:size])
                content = content[size:]
                home.ingest.pump()
                if restarts:
                    home.restart()
            home.ingest.finish(RUN)
        rows = stored(home.connection)
        home.close()
        return rows


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@given(attempts_of, st.lists(st.integers(1, 400), max_size=30), st.sampled_from([1, 50, 200]), st.booleans())
def test_in_whatever_chunks_the_bytes_arrive(
    attempts: tuple[str, list[list[bytes]]], cuts: list[int], most: int, restarts: bool
) -> None:
    kind, pieces = attempts
    whole = [b"".join(piece) for piece in pieces]
    with pytest.MonkeyPatch.context() as patch:
        # Over-long lines and full batches are tried as well.
        for name, value in (("MAX_LINE_BYTES", 298), ("BATCH_LINES", 3), ("BATCH_BYTES", most)):
            patch.setattr(segments, name, value)
        rows = outcome(kind, whole, cuts, restarts)
        patch.setattr(segments, "BATCH_BYTES", 200)
        assert rows == outcome(kind, whole, [], restarts=False)


# --- a process that is killed at any moment, again and again, while another one writes --------------------------------


@pytest.mark.parametrize(("seed", "how"), [(1, "append"), (2, "rewrite"), (3, "rotate")])
def test_no_line_is_lost_or_doubled_by_kills(tmp_path: Path, seed: int, how: str) -> None:
    dice = random.Random(seed)
    lines = 8_000
    home = MetricsHome(tmp_path)
    home.begin()
    home.close()
    database = home.workspace.database
    begun = tmp_path / "begun"
    writer = start(WRITE, home.file, seed, lines, how, begun)
    reader_connection = sqlite3.connect(database)
    kills = 0
    try:
        while writer.poll() is None or kills < 6:
            ingest = start(INGEST, database)
            try:
                assert ingest.stdout is not None
                assert ingest.stdout.readline() == "up\n"
                time.sleep(dice.random() * 0.15)
                if reader_connection.execute("SELECT EXISTS (SELECT 1 FROM metrics)").fetchone() == (1,):
                    begun.touch()
            finally:
                ingest.send_signal(signal.SIGKILL)
                ingest.communicate()
            kills += 1
    finally:
        reader_connection.close()
        writer.kill()
        writer.communicate()
    assert writer.returncode == 0

    connection = sqlite3.connect(database, isolation_level=None)
    MetricsIngest(connection).finish(RUN)
    rows = connection.execute("SELECT step FROM metrics WHERE step IS NOT NULL ORDER BY generation, byte_offset")
    steps = [step for (step,) in rows]
    assert steps == list(range(lines)) if how != "rewrite" else sorted(steps) == list(range(lines))
    counted = connection.execute("SELECT line_count, rejected_count FROM metric_sources").fetchone()
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM metrics), (SELECT count(*) FROM rejected_lines)"
    ).fetchone()
    assert counted == counts
    newest = json.loads(connection.execute("SELECT data FROM metric_newest").fetchone()[0])
    assert newest["step"] == lines - 1
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
