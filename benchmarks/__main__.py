"""Takes all measurements and prints one table: ``python -m benchmarks [NAME…] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import curves, death, figures, ingest, latency, moments, peers, record, record_sizes, start, table, tui
from benchmarks.alone import end_tidily
from benchmarks.fakenvml.build import BuildError
from benchmarks.processes import machine_load
from benchmarks.scene import GPUS, PROCESSES_EACH
from benchmarks.terminal import TerminalTimeoutError
from benchmarks.trainer import parts

BENCHMARKS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "record": record.measure,
    "disk": record_sizes.measure,
    "tui": tui.measure,
    "start": start.measure,
    "ingest": ingest.measure,
    "curves": curves.measure,
    "moments": moments.measure,
    "latency": latency.measure,
    "death": death.measure,
    "peers": peers.measure,
    "trainer": parts.measure,
}

FAILURES = (
    AssertionError,
    BuildError,
    OSError,
    TerminalTimeoutError,
    ValueError,
    sqlite3.Error,
    subprocess.SubprocessError,
)
"""What a measurement fails with; the others are still taken. OSError includes TimeoutError."""


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 when everything asked for was measured, whether or not the aims were reached, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures what gputui costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to take: {', '.join(BENCHMARKS)}; else all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to this file")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is named {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    end_tidily()
    began_at = time.monotonic()
    print(
        f"{GPUS} GPUs with {GPUS * PROCESSES_EACH} processes, NVML faked; {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, load {machine_load():.2f}"
    )
    results: dict[str, dict[str, Any] | None] = {}
    failed = []
    for name in args.names or BENCHMARKS:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        load = machine_load()
        started_at = time.monotonic()
        try:
            results[name] = {**BENCHMARKS[name](), "load_before": load, "took_seconds": time.monotonic() - started_at}
        except FAILURES as error:
            results[name] = None
            failed.append(f"{name} could not be measured: {_reason(error)}")
    print(f"\n{table.render(results)}\n")
    failed += [f"{text} (could not be measured)" for text in figures.texts_under(results, "failed")]
    left_out = [f"left out: {text}" for text in figures.texts_under(results, "why_not")]
    for line in [*failed, *left_out, *(f"missed: {text}" for text in table.missed(results))]:
        print(line)
    print(f"took {time.monotonic() - began_at:.0f} s")
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _reason(error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        return f"{error}: {error.stderr.strip()}"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
