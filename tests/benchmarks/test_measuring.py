"""The instruments: what is counted, and when a screen counts as complete."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from benchmarks import figures, table
from benchmarks.percentiles import percentile
from benchmarks.processes import CpuMeter, cpu_seconds, family, memory
from benchmarks.terminal import Replay, Terminal, TerminalTimeoutError
from tests.texts import mentions

BUSY = (
    "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('done', flush=True)\n"
)
PATIENT = "import time; time.sleep(60)"


def terminal(script: str, arguments: Sequence[str] = (), columns: int = 40, rows: int = 6) -> Terminal:
    return Terminal([sys.executable, "-c", script, *arguments], columns=columns, rows=rows, environment=os.environ)


def test_cpu_time_is_that_of_the_process_not_of_the_clock() -> None:
    with terminal(BUSY + PATIENT) as busy, terminal(PATIENT) as idle:
        busy.wait(lambda lines: "done" in lines[0], 30)
        assert 0.3 <= cpu_seconds(busy.pid) < 0.3 + 1.0
        meter = CpuMeter({"busy": [busy.pid], "idle": [idle.pid]})
        time.sleep(0.2)
        shares = meter.percent()
    assert shares["sum"] == pytest.approx(shares["busy"] + shares["idle"])
    assert shares["busy"] < 20


def test_cpu_time_of_children_that_have_ended_counts() -> None:
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])\nprint('over', flush=True)\n"
    with terminal(script + PATIENT) as parent:
        parent.wait(lambda lines: any("over" in line for line in lines), 30)
        assert cpu_seconds(parent.pid) >= 0.3


def test_a_family_is_a_process_with_its_descendants() -> None:
    script = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {PATIENT!r}])\n"
    with terminal(script + "print(child.pid, flush=True)\nchild.wait()") as parent:
        parent.wait(lambda lines: lines[0].strip().isdigit(), 30)
        child = int(parent.shown[0])
        assert sorted(family([parent.pid])) == sorted([parent.pid, child])
        both, one = memory([parent.pid, child]), memory([parent.pid])
        os.kill(child, 9)
        parent.process.wait(10)
    assert both.rss_bytes > one.rss_bytes > 1 << 20
    assert 0 < both.pss_bytes <= both.rss_bytes
    with pytest.raises(OSError):
        cpu_seconds(child)


def test_the_terminal_answers_what_programs_ask() -> None:
    script = (
        "import os, sys, tty\ntty.setraw(0)\n"
        "os.write(1, b'\\x1b[?2026$p\\x1b[c')\n"
        "answer = b''\n"
        "while not answer.endswith(b'c'): answer += os.read(0, 100)\n"
        "print(answer[1:].replace(b'\\x1b', b'|').decode(), flush=True)\n" + PATIENT
    )
    with terminal(script) as asking:
        assert asking.wait(lambda lines: "[?2026;2$y|[?62;22c" in lines[0], 30) <= time.monotonic()


def test_the_terminal_has_the_size_it_was_given_and_takes_keys() -> None:
    script = "import os\nprint(os.get_terminal_size(), flush=True)\nprint('got', input())\n" + PATIENT
    with terminal(script, columns=61, rows=9) as shown:
        shown.wait(lambda lines: "columns=61, lines=9" in lines[0], 30)
        before = shown.bytes_written
        shown.press(b"x\r")
        shown.wait(lambda lines: any("got x" in line for line in lines), 30)
        assert shown.bytes_written > before


def test_waiting_for_what_never_comes_shows_the_screen() -> None:
    with (
        terminal("print('only this', flush=True)\n" + PATIENT) as shown,
        pytest.raises(TerminalTimeoutError, match="only this"),
    ):
        shown.wait(lambda lines: "something else" in lines[0], 0.5)


def test_a_screen_is_complete_when_no_line_is_missing_whatever_the_figures() -> None:
    output = [
        (1.0, b"\x1b[Htitle\r\n\x1b[3Hload 10 %"),
        (2.0, b"\x1b[Htitle\r\nGPU 0\r\nload 20 %"),
        (3.0, b"\x1b[3Hload 30 %"),
    ]
    assert Replay(output, columns=20, rows=5).first_complete() == 2.0


def test_an_empty_screen_is_never_complete() -> None:
    with pytest.raises(ValueError, match="empty"):
        Replay([(1.0, b"\x1b[2J")], columns=20, rows=5).first_complete()


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(200, 0, -1)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (100.0, 198.0, 200.0)
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_the_table_tells_reached_from_missed_from_unknown() -> None:
    results = {
        "record": {"cpu_percent": 0.7, "rss_bytes": 51e6, "nvml_calls_per_second": None},
        "death": None,
        "peers": {"nvitop": {"version": "1.7.2"}, "nvtop": None},
    }
    lines = {line[:24].strip(): line for line in table.render(results).splitlines()}
    assert lines["record, CPU of a core"].split()[-4:] == ["%", "<", "0.5", "NO"]
    assert lines["record, memory (RSS)"].split()[-5:] == ["51.0", "MB", "<", "60", "yes"]
    assert lines["record, calls to NVML"].split()[-3:] == ["–", "<", "70"]
    assert "nvitop 1.7.2" in lines["figure"]
    assert table.missed(results) == ["record, CPU of a core"]


def test_a_program_that_is_not_installed_has_no_figures() -> None:
    results = {"tui": {"80x24": {"idle": {"cpu_percent": 1.0}}}, "peers": {"nvitop": None, "nvtop": None}}
    line = next(line for line in table.render(results).splitlines() if "80x24, CPU of a core" in line)
    assert line.endswith("yes      not installed  not installed")


def test_what_was_left_out_has_a_reason_instead_of_lines() -> None:
    results = {
        "death": {"seconds": None, "why_not": "torch is not installed"},
        "trainer": {"line": {"seconds": 13e-6, "spread": [12e-6, 15e-6]}, "gpt2": {"why_not": "no GPU"}},
    }
    shown = table.render(results)
    assert "worker's death" not in shown
    assert "GPT-2 124M: tokens" not in shown
    assert next(line for line in shown.splitlines() if "a metrics line" in line).endswith("13 µs (12..15)")
    assert figures.said(results, "why_not") == ["death: torch is not installed", "trainer gpt2: no GPU"]


def test_an_unknown_benchmark_is_refused() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "speed"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.returncode and mentions(done.stderr, "speed")
