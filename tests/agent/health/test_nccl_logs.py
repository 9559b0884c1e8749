"""NCCL's complaints in the logs of living attempts."""

from __future__ import annotations

import sqlite3

from gputui.agent.context import AgentContext
from gputui.agent.health.alerting import NcclLogs
from gputui.core.config import Workspace
from gputui.recovery.signatures import nccl_trouble
from gputui.store.attempts import Attempt
from tests.tables import table

TROUBLE = "box:4242:4343 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer box<41234>"
WATCHDOG = (
    "[E1121 03:02:11.123456 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
)


@table("line, is_trouble", [
    (TROUBLE, True), (WATCHDOG, True), ("my script says: NCCL error handling is on", False),
    ("box:4242:4343 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : port error", True),
    ("box:4242:4343 [1] enqueue.cc:1200 NCCL WARN Cuda failure 'an illegal memory access was encountered'", True),
    ("box:4242:4343 [1] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", False),
    ("box:4242:4343 [1] NCCL WARN NET/Plugin : Failed to open libnccl-net.so, error: no such file", False),
    ("[I1121 03:02:11.123456 ProcessGroupNCCL.cpp:616] [Rank 1] initialization options: timeout 600", False),
])  # fmt: skip
def test_complaints_are_told_from_what_only_looks_like_them(line: str, is_trouble: bool) -> None:
    assert nccl_trouble(f"step 5\n{line}\nstep 6\n") == [line] * is_trouble


def test_only_what_is_new_is_told_and_once(workspace: Workspace, connection: sqlite3.Connection) -> None:
    log_file = workspace.run_dir("vit-1") / "attempts" / "1" / "ranks" / "x" / "attempt_0" / "1" / "stderr.log"
    log_file.parent.mkdir(parents=True)
    log_file.write_text(f"{TROUBLE}\n")
    logs = NcclLogs(AgentContext.of(connection, workspace, wake=lambda: None))
    records = [Attempt("vit-1", 1, "running", {}, ("GPU-0", "GPU-1"), {}, 0.0, 0.0)]
    assert logs.turn(0.0, records) == {}, "it stood there before this agent"
    with log_file.open("a") as file:
        file.write(f"step 7\n{WATCHDOG}\n")
    assert logs.turn(5.0, records) == {}, "not yet time"
    assert logs.turn(10.0, records) == {"vit-1": [f"rank 1: {WATCHDOG}"]}
    assert logs.turn(20.0, records) == {}
    log_file.write_text("")
    assert logs.turn(30.0, records) == {} and logs.turn(40.0, []) == {} and logs.places == {}
