"""An ingesting process that is killed at any moment, again and again, while another process writes."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputui.metrics.ingest import MetricsIngest

from .conftest import RUN, Bench

INGEST = """
import sys, time
from pathlib import Path
from gputui.metrics.ingest import MetricsIngest
from gputui.store.database import open_writer
ingest = MetricsIngest(open_writer(Path(sys.argv[1])))
print("up", flush=True)
while True:
    if not ingest.pump(budget_bytes=60_000).more:
        time.sleep(0.001)
"""

# Pieces of random length, so that lines arrive in parts; now and then a broken line, a rotation, a very long line.
WRITE = r"""
import json, os, random, sys, time
path, seed, count, rotate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "rotate"
dice = random.Random(seed)
step, renamed, pending, rotated, begun = 0, 0, b"", 0.0, sys.argv[5]
file = open(path, "ab", 0)
while step < count or pending:
    if len(pending) < 4000 and step < count:
        for _ in range(200):
            pending += json.dumps({"step": step, "loss": dice.random()}).encode() + b"\n"
            step += 1
        if dice.random() < 0.2:
            pending += b"broken\n" + b"x" * dice.choice([10, 3_000_000]) + b"\n"
    size = dice.randint(1, 30_000)
    # A file that is put aside before anything of it was read is nobody's: which attempt wrote it cannot be known.
    rotating = rotate and time.time() - rotated > 0.03 and os.path.exists(begun)
    if rotating:
        size = pending.find(b"\n", size) + 1 or len(pending)
    file.write(pending[:size])
    pending = pending[size:]
    if rotating:
        rotated = time.time()
        renamed += 1
        os.rename(path, f"{path}.{renamed}")
        file.close()
        file = open(path, "ab", 0)
    time.sleep(dice.random() * 0.004)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize(("seed", "how"), [(1, "append"), (3, "rotate")])
def test_no_line_is_lost_or_doubled(tmp_path: Path, seed: int, how: str) -> None:
    dice = random.Random(seed)
    lines = 8_000
    bench = Bench(tmp_path)
    bench.begin()
    bench.ingest.close()
    bench.connection.close()
    database = tmp_path / "gputui.db"
    begun = tmp_path / "begun"
    writer = start(WRITE, bench.file, seed, lines, how, begun)
    looking = sqlite3.connect(database)
    kills = 0
    try:
        while writer.poll() is None or kills < 6:
            ingest = start(INGEST, database)
            try:
                assert ingest.stdout is not None
                assert ingest.stdout.readline() == "up\n"
                time.sleep(dice.random() * 0.15)
                if looking.execute("SELECT EXISTS (SELECT 1 FROM metrics)").fetchone() == (1,):
                    begun.touch()
            finally:
                ingest.send_signal(signal.SIGKILL)
                ingest.communicate()
            kills += 1
    finally:
        looking.close()
        writer.kill()
        writer.communicate()
    assert writer.returncode == 0

    connection = sqlite3.connect(database, isolation_level=None)
    last = MetricsIngest(connection)
    last.finish(RUN)
    steps = [step for (step,) in connection.execute("SELECT step FROM metrics ORDER BY generation, byte_offset")]
    assert steps == list(range(lines))
    counted = connection.execute("SELECT line_count, rejected_count FROM metric_sources").fetchone()
    broken = connection.execute("SELECT count(*) FROM rejected_lines").fetchone()[0]
    assert counted == (lines, broken)
    newest = json.loads(connection.execute("SELECT data FROM metric_newest").fetchone()[0])
    assert newest["step"] == lines - 1
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
