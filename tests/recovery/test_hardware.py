"""The driver's reports about an attempt's GPUs, and their part in its end."""

from __future__ import annotations

from pathlib import Path

from gputui.recovery.classify import Incident, classify, outcome
from gputui.recovery.driver_reports import Sighting, observations
from gputui.recovery.evidence import Evidence, ExitRecord, ObservedCause, collect
from tests.recovery.attempts import lay_out, report, traceback

GPUS = ("GPU-a", "GPU-b")
END = 1000.0

NCCL = (
    "[rank0]:[E1120 17:42:04 ProcessGroupNCCL.cpp:1] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)

XIDS = {
    "illegal_access": (8, 13, 31, 41), "ecc": (48, 64, 94, 95, 171), "nvlink_error": (74, 150),
    "gpu_lost": (79, 119, 120, 158), None: (32, 43, 45, 63, 92, 121, 154, 9999),
}  # fmt: skip


def seen(code: int, *, at: float = END - 5, uuid: str = "GPU-b") -> Sighting:
    return Sighting(at, uuid, "xid", code)


def observed(*sightings: Sighting, nproc: int = 2) -> tuple[ObservedCause, ...]:
    return observations(sightings, GPUS, nproc, ended_at=END)


def evidence(*sightings: Sighting, code: int = 1, files: dict[str, str] | None = None, folder: Path) -> Evidence:
    lay_out(folder, files or {})
    record = ExitRecord(code=code, ended_at=END)
    return collect(folder, exit=record, ended_at=END, launcher="torchrun", observed=observed(*sightings))


def verdict(*sightings: Sighting, folder: Path, files: dict[str, str]) -> Incident:
    return classify(evidence(*sightings, folder=folder, files=files))


def test_what_an_xid_says() -> None:
    kinds = {code: [cause.kind for cause in observed(seen(code))] for codes in XIDS.values() for code in codes}
    assert kinds == {code: [] if kind is None else [kind] for kind, codes in XIDS.items() for code in codes}


def test_the_rank_and_the_gpu_are_named() -> None:
    (cause,) = observed(seen(95))
    assert (cause.rank, cause.gpu, cause.contained) == (1, "GPU-b", False)
    assert "XID 95" in cause.text
    assert "GPU 1" in cause.text


def test_a_gpu_that_came_back_is_not_lost() -> None:
    lost = Sighting(900, "GPU-a", "lost")
    back = Sighting(910, "GPU-a", "returned")
    assert [cause.kind for cause in observed(lost)] == ["gpu_lost"]
    assert observed(lost, back) == ()
    # An XID 79 means that the GPU fell off the bus; that it answers again changes nothing.
    assert [cause.kind for cause in observed(lost, back, seen(79, uuid="GPU-a"))] == ["gpu_lost"]


def test_an_old_error_ends_nothing() -> None:
    assert observed(seen(31, at=END - 200)) == ()
    assert observed(seen(74, at=END - 1000)) == ()
    assert observed(seen(79, at=END - 5000)) != ()


def test_counters_are_seen_too() -> None:
    kinds = [
        (cause.kind, cause.text)
        for cause in observed(Sighting(990, "GPU-a", "ecc", 2), Sighting(991, "GPU-b", "remap"))
    ]
    assert [kind for kind, _ in kinds] == ["ecc", "ecc"]
    assert "2 uncorrectable ECC errors" in kinds[0][1]
    assert "remapped" in kinds[1][1]


def test_an_error_that_needs_a_reset_counts_more_than_a_contained_one() -> None:
    (cause,) = observed(seen(94, at=990), seen(95, at=991))
    assert not cause.contained
    assert "XID 95" in cause.text
    assert observed(seen(94))[0].contained


# --- against what the logs say -----------------------------------------------------------------------------------


def test_hardware_wins_over_the_consequences_in_the_logs(tmp_path: Path) -> None:
    files = {"output.log": report({0: -6, 1: -6}, root=0), "ranks/0/stderr.log": NCCL, "ranks/1/stderr.log": NCCL}
    incident = verdict(seen(74, at=END - 620), folder=tmp_path, files=files)
    assert (incident.kind, incident.rank, incident.gpu) == ("nvlink_error", 1, "GPU-b")
    assert "XID 74" in incident.summary
    assert any("Watchdog" in line for line in incident.evidence_lines)


def test_a_lost_gpu_wins_over_what_the_rank_raised(tmp_path: Path) -> None:
    raised = traceback("RuntimeError: CUDA error: unknown error", rank=1)
    files = {"output.log": report({0: -15, 1: 1}, root=1, signalled=(0,)), "ranks/1/stderr.log": raised}
    incident = verdict(seen(79), folder=tmp_path, files=files)
    assert (incident.kind, incident.gpu, incident.contained) == ("gpu_lost", "GPU-b", False)


def test_a_run_that_ends_well_in_spite_of_an_error_has_succeeded(tmp_path: Path) -> None:
    assert outcome(evidence(seen(94), code=0, folder=tmp_path), stop_intended=False) == "succeeded"
    ended = ObservedCause("hang", END, "no step for 300 s")
    stopped = Evidence(ExitRecord(code=0), "torchrun", observed=(ended,))
    assert outcome(stopped, stop_intended=False) == "failed"
