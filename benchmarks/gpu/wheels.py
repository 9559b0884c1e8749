"""A folder of wheels for a machine without network: packed where there is one, unpacked onto Python's path there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What the trainer needs besides torch, but for models of transformers, which are not measured.
TRAINER = ("numpy", "pydantic", "PyYAML")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64")


def pack(folder: Path, python: str = "3.12") -> list[str]:
    """Downloads what gputui and the trainer need but torch, as wheels; their names. Raises CalledProcessError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--only-binary=:all:"]
    where = ["--python-version", python, "--implementation", "cp", *platforms, "--dest", str(folder)]
    subprocess.run([*pip, *where, *project["dependencies"], *TRAINER], check=True)
    return sorted(path.name for path in folder.glob("*.whl"))


def unpack(folder: Path, into: Path) -> list[Path]:
    """The paths to put before Python's own, of a folder of wheels. Raises ValueError where there are none in it."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ValueError(f"no wheels in {folder}: make it with python -m benchmarks.gpu --pack {folder}")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)
    return [into, *(path for path in into.glob("*.data/purelib")), *(path for path in into.glob("*.data/platlib"))]
