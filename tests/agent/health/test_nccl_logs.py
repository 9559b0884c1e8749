"""NCCL's complaints in the logs of living attempts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.health.nccl_logs import WINDOW_BYTES, NcclLogs
from gputui.config import Workspace
from gputui.recovery.signatures import nccl_trouble
from gputui.store.attempts import Attempt
from tests.stores import open_store

TROUBLE = "box:4242:4343 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer box<41234>"
WATCHDOG = (
    "[E1121 03:02:11.123456 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
)


@pytest.mark.parametrize(
    "line",
    [
        TROUBLE,
        WATCHDOG,
        "box:4242:4343 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : port error",
        "box:4242:4343 [1] enqueue.cc:1200 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
    ],
)
def test_complaints(line: str) -> None:
    assert nccl_trouble(f"step 5\n{line}\nstep 6\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        "box:4242:4343 [1] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "box:4242:4343 [1] NCCL WARN NET/Plugin : Failed to open libnccl-net.so, error: no such file",
        "[I1121 03:02:11.123456 ProcessGroupNCCL.cpp:616] [Rank 1] initialization options: timeout 600",
        "my script says: NCCL error handling is on",
        "loss 2.1, no error",
    ],
)
def test_look_alikes(line: str) -> None:
    assert nccl_trouble(line + "\n") == []


@pytest.fixture
def context(workspace: Workspace) -> Iterator[AgentContext]:
    with closing(open_store(workspace.database)) as connection:
        yield AgentContext.of(connection, workspace, wake=lambda: None)


def attempt(run_id: str, gpus: int) -> Attempt:
    return cast(Attempt, SimpleNamespace(run_id=run_id, number=1, gpus=tuple(f"GPU-{i}" for i in range(gpus))))


@pytest.fixture
def log_file(workspace: Workspace) -> Path:
    path = workspace.run_dir("vit-1") / "attempts" / "1" / "ranks" / "x" / "attempt_0" / "1" / "stderr.log"
    path.parent.mkdir(parents=True)
    path.write_text(f"{TROUBLE}\n")
    return path


def test_only_what_is_new_is_told_and_once(context: AgentContext, log_file: Path) -> None:
    logs = NcclLogs(context)
    records = [attempt("vit-1", 2)]
    assert logs.turn(0.0, records) == {}, "it stood there before this agent"
    with log_file.open("a") as file:
        file.write(f"step 7\n{WATCHDOG}\n")
    assert logs.turn(5.0, records) == {}, "not yet time"
    assert logs.turn(10.0, records) == {"vit-1": [f"rank 1: {WATCHDOG}"]}
    assert logs.turn(20.0, records) == {}
    log_file.write_text("")
    assert logs.turn(30.0, records) == {} and logs.turn(40.0, []) == {} and logs.places == {}


def test_a_flood_is_read_from_its_end(context: AgentContext, log_file: Path) -> None:
    logs = NcclLogs(context)
    logs.turn(0.0, [attempt("vit-1", 2)])
    with log_file.open("a") as file:
        file.write("noise\n" * WINDOW_BYTES + f"{TROUBLE}\n")
    assert logs.turn(10.0, [attempt("vit-1", 2)]) == {"vit-1": [f"rank 1: {TROUBLE}"]}


def test_one_gpu_talks_to_nobody(context: AgentContext, log_file: Path) -> None:
    logs = NcclLogs(context)
    logs.turn(0.0, [attempt("vit-1", 1)])
    log_file.write_text(f"{TROUBLE}\n" * 3)
    assert logs.turn(10.0, [attempt("vit-1", 1)]) == {}


def test_a_log_that_cannot_be_read_stops_nothing(
    context: AgentContext, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = NcclLogs(context)
    logs.turn(0.0, [attempt("vit-1", 2)])

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    with log_file.open("a") as file:
        file.write(f"{WATCHDOG}\n")
    monkeypatch.setattr("gputui.agent.health.nccl_logs.read_window", broken)
    assert logs.turn(10.0, [attempt("vit-1", 2)]) == {}
