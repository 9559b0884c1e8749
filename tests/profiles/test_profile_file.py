"""Every mistake in a profile is answered with its line and with what was probably meant, all of them at once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.core.config import Workspace, shipped_profiles
from gputui.core.yaml_forms.document import MAX_BYTES
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.params import Parameter
from gputui.profiles.profile_file import ProfileNotFoundError, find, list_profiles, load, read_profile
from gputui.profiles.schema import ProfileForm
from tests.tables import table

FILE = Path("x.yaml")


def problems_of(text: str) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        read_profile(text, FILE)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return str(caught.value).split("\n")


def the_problem_of(text: str) -> str:
    problems = problems_of(text)
    assert len(problems) == 1, problems
    return problems[0]


FULL = """\
name: resnet18-cifar10
description: The usual first one
launcher: torchrun
script: train.py
python: .venv/bin/python
workdir: .
gpus: 2
nproc: gpus
visible: index
requires: {gpu_memory: 10GiB, disk: 1.5 GB}
params: {batch_size: 128, lr: 1e-1, gradient_checkpointing: false, note: null}
args: --batch-size {batch_size} --lr {lr} --name 'two words'
env: {NCCL_DEBUG: WARN, V: 1.10, X: on, N: 4}
metrics: {source: jsonl, path: "{run_dir}/metrics.jsonl"}
checkpoints: {dir: "{run_dir}/checkpoints", pattern: "step_*.pt", resume: "--resume {checkpoint}"}
alerts: standard
recovery: {max_attempts: 5}
roles: {batch_size: batch_size}
grace: 90
"""


def test_a_profile_with_everything() -> None:
    profile = read_profile(FULL, FILE)
    form = profile.form
    assert profile.name == "resnet18-cifar10"
    assert profile.description == "The usual first one"
    assert (form.requires.gpu_memory, form.requires.disk) == (10 * 2**30, 1_500_000_000)
    assert form.args == ["--batch-size", "{batch_size}", "--lr", "{lr}", "--name", "two words"]
    assert form.env == {"NCCL_DEBUG": "WARN", "V": "1.10", "X": "on", "N": "4"}
    assert form.checkpoints is not None
    assert form.checkpoints.resume == ["--resume", "{checkpoint}"]
    assert form.recovery == {"policy": "standard", "max_attempts": 5}
    assert profile.parameters["lr"] == Parameter("lr", 0.1)
    assert profile.parameters["note"] == Parameter("note", None)
    assert form.grace == 90


def test_the_least_profile() -> None:
    profile = read_profile("script: train.py", Path("some where/My Run.yaml"))
    assert profile.name == "My-Run"
    assert profile.form.gpus.count == 1
    assert profile.form.metrics is not None
    assert profile.form.metrics[0].path == "{run_dir}/metrics.jsonl"
    assert read_profile("command: ./go.sh --fast", FILE).form.launcher == "command"


@table(
    ("text", "policy"),
    [
        ("off", "off"),
        ("false", "off"),
        ("standard", "standard"),
        ("restart-only", "restart-only"),
        ("{max_attempts: 2}", "standard"),
    ],
)
def test_recovery_off_is_off(text: str, policy: str) -> None:
    assert read_profile(f"script: a.py\nrecovery: {text}", FILE).form.recovery["policy"] == policy


def mistakes() -> list[tuple[str, str]]:
    """Text and answer of each case in mistakes.txt."""
    content = (Path(__file__).parent / "mistakes.txt").read_text("utf-8").split("\n", 1)[1]
    cases = [(text[1:], answer) for text, answer in re.findall(r"((?:(?!=> ).*\n)+)=> (.*)\n", content)]
    assert len(cases) > 50
    return cases


@table(("text", "line"), mistakes())
def test_one_mistake_one_line(text: str, line: str) -> None:
    assert the_problem_of(text) == line


def test_all_mistakes_at_once_in_the_order_of_the_file() -> None:
    text = (
        "script: a.py\nlauncher: torchrn\nenv:\n  A: [1]\nscript: b.py\n"
        "roles: {x: y}\nparams: {a: [1], b: {}}\nfoo: 1\n"
    )
    problems = problems_of(text)
    assert [problem.split(": ")[0] for problem in problems] == [
        "x.yaml:2", "x.yaml:4", "x.yaml:5", "x.yaml:6", "x.yaml:7", "x.yaml:7", "x.yaml:8",
    ]  # fmt: skip


@table(
    "text",
    [
        "params: {n: {default: 1, max: HUGE}}",
        'metrics: {source: output, patterns: ["step (?P<step>.*) loss (?P<loss>.*)"], units: {loss: HUGE}}',
        "gates: {gpu_utilization: HUGE}",
    ],
)
def test_a_number_beyond_every_float_is_a_mistake(text: str) -> None:
    assert len(problems_of("script: a.py\n" + text.replace("HUGE", "9" * 400))) == 1


def test_a_command_with_a_nul_character_is_said_to_have_one() -> None:
    (problem,) = problems_of('script: a.py\nargs: "a\\0b"\n')
    assert "NUL" in problem and "split" not in problem


def test_what_is_written_never_drives_the_terminal() -> None:
    for problem in problems_of('"\\e]0;x\\a": 1\nscript: 5\ndescription: ["\\e[2J"]\nname: "\\e[31mx"\n'):
        assert "\x1b" not in problem
        assert "\x07" not in problem


@given(
    st.dictionaries(
        st.sampled_from([*ProfileForm.model_fields, "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=5,
        ),
        max_size=5,
    )
)
def test_any_data_is_answered(data: dict[str, object]) -> None:
    import yaml

    try:
        read_profile(yaml.safe_dump(data), FILE)
    except ProfileError as error:
        assert error.problems


class TestFiles:
    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        fifo, big, latin, link = (tmp_path / f"{name}.yaml" for name in ("fifo", "big", "latin", "link"))
        os.mkfifo(fifo)
        big.write_bytes(b"#" * (MAX_BYTES + 1))
        latin.write_bytes("name: x\ndescription: Übung".encode("latin-1"))
        link.symlink_to(tmp_path / "gone.yaml")
        for path, words in [
            (tmp_path / "none.yaml", "none.yaml: cannot be read: no such file or directory"),
            (tmp_path, f"{tmp_path.name}: is a folder; a profile is a YAML file"),
            (fifo, "fifo.yaml: is not a regular file"),
            (Path("/dev/zero"), "/dev/zero: is not a regular file"),
            (big, "big.yaml: is larger than 1 MiB, which no profile is"),
            (latin, "latin.yaml:2: not UTF-8; save it in that encoding"),
            (link, "link.yaml: cannot be read: no such file or directory"),
        ]:
            with pytest.raises(ProfileError) as caught:
                load(path)
            assert str(caught.value).endswith(words)

    def test_the_folder_is_the_one_the_file_really_lies_in(self, tmp_path: Path) -> None:
        (tmp_path / "project").mkdir()
        (tmp_path / "home").mkdir()
        (tmp_path / "project" / "a.yaml").write_text("script: a.py")
        (tmp_path / "home" / "b.yaml").symlink_to(tmp_path / "project" / "a.yaml")
        profile = load(tmp_path / "home" / "b.yaml")
        assert profile.folder == (tmp_path / "project").resolve()
        assert profile.name == "b"


class TestNames:
    @pytest.fixture
    def here(self, tmp_path: Path) -> Path:
        here = tmp_path / "project"
        (here / "profiles").mkdir(parents=True)
        return here

    def test_first_here_then_home_then_shipped(self, here: Path, workspace: Workspace) -> None:
        for folder in (here / "profiles", workspace.profiles):
            (folder / "mine.yaml").write_text("script: a.py")
        assert find("mine", workspace, here) == here / "profiles" / "mine.yaml"
        (here / "profiles" / "mine.yaml").unlink()
        assert find("mine", workspace, here) == workspace.profiles / "mine.yaml"
        (workspace.profiles / "mine.yaml").unlink()
        with pytest.raises(ProfileNotFoundError):
            find("mine", workspace, here)

    def test_by_path(self, here: Path, workspace: Workspace) -> None:
        (here / "a.yaml").write_text("script: a.py")
        assert find("a.yaml", workspace, here) == here / "a.yaml"
        assert find("./a.yaml", workspace, here).resolve() == here / "a.yaml"
        assert find(str(here / "a.yaml"), workspace, Path("/")) == here / "a.yaml"

    def test_a_list_has_broken_ones_too_and_each_name_once(self, here: Path, workspace: Workspace) -> None:
        (here / "profiles" / "good.yaml").write_text("script: a.py")
        (here / "profiles" / "broken.yaml").write_text("script: 5")
        (here / "profiles" / "notes.txt").write_text("no profile")
        (workspace.profiles / "good.yaml").write_text("script: other.py")
        entries = {entry.name: entry for entry in list_profiles(workspace, here)}
        assert "notes" not in entries
        assert (entries["good"].source, entries["good"].path) == ("here", here / "profiles" / "good.yaml")
        assert entries["broken"].profile is None
        assert "expected text" in str(entries["broken"].error)
        assert all(entry.source == "shipped" for entry in entries.values() if entry.path.parent == shipped_profiles())


@table("path", sorted(shipped_profiles().glob("*.yaml")))
def test_every_shipped_profile_loads(path: Path) -> None:
    profile = load(path)
    assert profile.name == path.stem
    assert profile.description or path.read_text().startswith("#"), "says what it is"
