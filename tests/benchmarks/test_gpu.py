"""The benchmark for a machine with a GPU: its parts at a tiny size on the CPU, and what its table says of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.texts import mentions

torch = pytest.importorskip("torch")

from benchmarks.gpu import __main__ as command  # noqa: E402
from benchmarks.gpu import models, parts, wheels  # noqa: E402
from benchmarks.gpu.parts import Machine, PartFailed  # noqa: E402

pytestmark = pytest.mark.timeout(1600)

MEASURED_ON_GPU = {"device": "NVIDIA H100", "torch": "2.11", "python": "3.12", "measured_on_gpu": True}


def machine(**changes: Any) -> Machine:
    return Machine(**{"device": "cpu", "quick": True, "ends_at": time.monotonic() + 1500, **changes})


def quick(tmp_path: Path, *words: str) -> int:
    files = ["--json", str(tmp_path / "gpu.json"), "--markdown", str(tmp_path / "gpu.md")]
    return command.main(["--device", "cpu", "--quick", "--minutes", "25", *files, *words])


def test_without_a_gpu_it_is_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert command.main(["--json", str(tmp_path / "gpu.json")]) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert mentions(line, "CUDA") and not (tmp_path / "gpu.json").exists()


@pytest.mark.parametrize("words", [["--device", "cpu"], ["speed"], ["--device", "cpu", "--quick", "--wheels", "/none"]])
def test_what_cannot_be_is_usage(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2


def test_every_figure_belongs_to_a_part() -> None:
    assert {figure.path[0] for figure in command.FIGURES} | {"nvml"} == set(parts.PARTS)


@pytest.mark.long
def test_the_bare_loop_needs_torch_alone(tmp_path: Path) -> None:
    """In a Python that finds nothing of what the trainer and gputui need."""
    asked = {"model": "gpt2", "device": "cpu", "batch": 2, "size": 8, "compiled": False, "warm_steps": 1, "steps": 2}
    program = (
        "import sys\n"
        "for name in ('pydantic', 'yaml', 'textual', 'msgspec', 'transformers'): sys.modules[name] = None\n"
        "from benchmarks.gpu import __main__, bare, models, parts; import json\n"
        "from trainer.telemetry.peaks import peak_flops; assert peak_flops('NVIDIA H100', 'half')\n"
        "print(json.dumps(bare.train(**json.loads(sys.argv[1]))))\n"
    )
    given = json.dumps({**asked, "layers": 1, "width": 32, "heads": 1})
    done = subprocess.run([sys.executable, "-c", program, given], capture_output=True, text=True, cwd=wheels.ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["per_second"] == pytest.approx(16 / found["step_seconds"]) and 9 < found["loss"] < 13


@pytest.mark.long
def test_quick_parts_on_the_cpu_are_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quick(tmp_path, "bare-gpt2-eager", "gpt2-eager", "nvml") == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["machine"]["measured_on_gpu"] is False
    trained = found["gpu"]["gpt2-eager"]
    assert trained["ratio"] == trained["per_second"] / found["gpu"]["bare-gpt2-eager"]["per_second"]
    assert trained["checkpoint_bytes"] > 1e6
    # How much longer a step takes; below 0 where the noise of this machine is larger than the stall.
    assert math.isfinite(trained["stall_seconds"])
    rows = [line for line in (tmp_path / "gpu.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= len(command.FIGURES) - 1 and all("not measured" in row for row in rows)
    assert found["gpu"]["nvml"] == {"why_not": parts.NO_GPU, "took_seconds": found["gpu"]["nvml"]["took_seconds"]}


@pytest.mark.long
def test_out_of_memory_is_recovered_by_gputui() -> None:
    found = parts.out_of_memory(machine())
    assert found["recovered"] and found["state"] == "succeeded" and found["incidents"] == ["cuda_oom"]
    assert found["batch_sizes"][0] == 16 > found["batch_sizes"][1] and found["without_steps_seconds"] > 0


@pytest.mark.long
def test_images_are_trained_by_both() -> None:
    for part in ("bare-resnet50", "resnet50"):
        assert parts.PARTS[part](machine())["per_second"] > 0


def test_a_part_that_fails_or_has_no_time_leaves_the_others() -> None:
    def fails(_: Machine) -> dict[str, Any]:
        raise PartFailed("exit status 1: out of memory")

    found = parts.measure((), machine(), {"worse": fails, "good": lambda _: {"per_second": 1.0}})
    assert found["worse"] == {"failed": "exit status 1: out of memory"} and found["good"]["per_second"] == 1.0
    late = machine(ends_at=time.monotonic() + 5)
    assert parts.measure((), late, {"good": fails}) == {"good": {"why_not": "the time was over"}}
    with pytest.raises(PartFailed, match=r"exit status 1: .*no such thing"):
        machine().run("-c", "raise SystemExit('no such thing')", limit_seconds=120)
    with pytest.raises(PartFailed, match="more than 0 s"):
        machine(quick=False).run("-c", "import time; time.sleep(60)", limit_seconds=0.2)


def test_the_table_tells_what_was_reached() -> None:
    gpus = parts.compared(
        [{"uuid": "GPU-1", "utilization_percent": 97, "memory_used_mib": 900.0, "memory_total_mib": 81559.0,
          "temperature_celsius": 60, "power_watts": 500.0, "sm_clock_mhz": None}],
        "GPU-1, 99, 1900, 81559, 61, 510.5, [N/A]\nGPU-2, 0, 0, 1, 1, 1, 1\n",
    )  # fmt: skip
    assert [one["agree"] for one in gpus] == [True, False, True, True, True, None]
    results = {
        "gpu": {
            "gpt2-compiled": {"per_second": 470_000.0, "mfu": 0.41, "ratio": 0.98},
            "oom": {"recovered": True, "state": "succeeded", "batch_sizes": [16, 12], "without_steps_seconds": 4.0},
            "nvml": {"gpus": gpus},
        }
    }
    table = command.markdown(results, MEASURED_ON_GPU)
    assert "| GPT-2 124M, trainer, compiled: used of the GPU | 41.0 % of peak | ≥ 40 | yes |" in table
    assert "| GPT-2 124M, trainer, compiled: speed over the bare loop's | 0.980 × | ≥ 0.99 | NO |" in table
    assert "| ResNet-50, trainer: images a second | not measured | ≥ 3,500 |  |" in table
    assert "| out of memory, recovered by gputui; micro batches 16, 12 | succeeded | | yes |" in table
    assert "| memory_used_mib of GPU-1: gputui; nvidia-smi | 900.0; 1900.0 | | NO |" in table


def test_models_have_the_sizes_of_their_papers() -> None:
    with torch.device("meta"):
        gpt2, resnet = models.gpt2(50257, 1024), models.resnet50((3, 224, 224), 1000)
    assert sum(one.numel() for one in gpt2.parameters()) == 124_475_904
    assert sum(one.numel() for one in resnet.parameters()) == 25_557_032
    assert resnet(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 1000)
    assert gpt2.flops_per_token() == pytest.approx(6 * 123.7e6 + 12 * 12 * 768 * 1024, rel=1e-3)


def test_wheels_are_unpacked_onto_the_path(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("thing_of_wheels.py", "VALUE = 7\n")
    path = wheels.unpack(tmp_path, tmp_path / "unpacked")
    shown = machine(path=path).run("-c", "import thing_of_wheels; print(thing_of_wheels.VALUE)", limit_seconds=120)
    assert shown == "7\n"
    with pytest.raises(ValueError, match="no wheels in"):
        wheels.unpack(tmp_path / "unpacked", tmp_path)
