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
from gputui.core.yaml_forms.problems import Problem, ProfileError
from gputui.profiles.profile_file import ProfileNotFoundError, find, list_profiles, load, profiles_in, read_profile
from gputui.profiles.schema import ProfileForm
from tests.tables import table
from tests.texts import mentions

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


def mistakes() -> list[tuple[str, str]]:
    """Text and answer of each case in mistakes.txt."""
    content = (Path(__file__).parent / "mistakes.txt").read_text("utf-8").split("\n", 1)[1]
    cases = [(text[1:], answer) for text, answer in re.findall(r"((?:(?!=> ).*\n)+)=> (.*)\n", content)]
    assert len(cases) > 50
    return cases


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "project" / "profiles").mkdir(parents=True)
    return tmp_path / "project"


def problems_of_recovery(recovery: str) -> list[Problem]:
    with pytest.raises(ProfileError) as caught:
        read_profile(f"script: a.py\nrecovery: {recovery}", FILE)
    assert all(problem.line == 2 for problem in caught.value.problems)
    return caught.value.problems


def test_a_profile_with_everything() -> None:
    profile = read_profile(FULL, FILE)
    form = profile.form
    assert (profile.name, profile.description) == ("resnet18-cifar10", "The usual first one")
    assert (form.requires.gpu_memory, form.requires.disk) == (10 * 2**30, 1_500_000_000)
    assert form.args == ["--batch-size", "{batch_size}", "--lr", "{lr}", "--name", "two words"]
    assert form.env == {"NCCL_DEBUG": "WARN", "V": "1.10", "X": "on", "N": "4"}
    assert form.checkpoints is not None
    assert form.checkpoints.resume == ["--resume", "{checkpoint}"]
    assert (form.recovery, form.grace) == ({"policy": "standard", "max_attempts": 5}, 90)
    assert {name: profile.parameters[name].default for name in ("lr", "note")} == {"lr": 0.1, "note": None}


def test_the_least_profile() -> None:
    profile = read_profile("script: train.py", Path("some where/My Run.yaml"))
    assert (profile.name, profile.form.gpus.count) == ("My-Run", 1)
    assert [source.source for source in profile.form.metrics.sources] == ["auto"]
    assert read_profile("command: ./go.sh --fast", FILE).form.launcher == "command"


@table(
    ("text", "kinds", "loss", "best"),
    [
        ("off", [], None, None),
        ("auto", ["auto"], None, None),
        ("{source: csv, path: m.csv}", ["csv"], None, None),
        ("[{source: jsonl}, {source: csv, path: m.csv}]", ["jsonl", "csv"], None, None),
        ("{loss: train/loss}", ["auto"], "train/loss", None),
        ("{source: jsonl, loss: L}", ["jsonl"], "L", None),
        ("{best: {name: val/acc, mode: max}}", ["auto"], None, ("val/acc", "max")),
        ("{sources: [{source: jsonl}, {source: csv, path: m.csv}], loss: 'training loss'}", ["jsonl", "csv"],
         "training loss", None),
    ],
)  # fmt: skip
def test_forms_of_metrics(text: str, kinds: list[str], loss: str | None, best: tuple[str, str] | None) -> None:
    metrics = read_profile(f"script: train.py\nmetrics: {text}", FILE).form.metrics
    assert [source.source for source in metrics.sources] == kinds
    assert metrics.loss == loss
    assert (metrics.best and (metrics.best.name, metrics.best.mode)) == best


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
    ("text", "word"),
    [
        ("params: {n: {default: 1, max: HUGE}}", "n"), ("gates: {gpu_utilization: HUGE}", "gpu_utilization"),
        ('metrics: {source: output, patterns: ["step (?P<step>.*) l (?P<l>.*)"], units: {l: HUGE}}', "units"),
        ('args: "a\\0b"\n', "NUL"), ('description: ["\\e[2J"]', "description"),
        ('"\\e]0;x\\a": 1', "unknown key"), ('name: "\\e[31mx"', "name"),
    ],
)  # fmt: skip
def test_odd_values_are_a_mistake_that_never_drives_the_terminal(text: str, word: str) -> None:
    problem = the_problem_of("script: a.py\n" + text.replace("HUGE", "9" * 400))
    assert word in problem
    assert not {"\x1b", "\x07"} & set(problem)


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


def test_what_cannot_be_read(tmp_path: Path) -> None:
    fifo, big, latin, link = (tmp_path / f"{name}.yaml" for name in ("fifo", "big", "latin", "link"))
    os.mkfifo(fifo)
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    latin.write_bytes("name: x\ndescription: Übung".encode("latin-1"))
    link.symlink_to(tmp_path / "gone.yaml")
    for path, phrases in (
        (tmp_path / "none.yaml", ("none.yaml: ", "no such file")), (tmp_path, (tmp_path.name, "folder")),
        (fifo, ("fifo.yaml: ", "regular file")), (Path("/dev/zero"), ("/dev/zero: ", "regular file")),
        (big, ("big.yaml: ", "1 MiB")), (latin, ("latin.yaml:2: ", "UTF-8")), (link, ("link.yaml: ", "no such file")),
    ):  # fmt: skip
        with pytest.raises(ProfileError) as caught:
            load(path)
        assert mentions(str(caught.value), *phrases), path


def test_the_folder_is_the_one_the_file_really_lies_in(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.yaml").write_text("script: a.py")
    (tmp_path / "b.yaml").symlink_to(tmp_path / "project" / "a.yaml")
    profile = load(tmp_path / "b.yaml")
    assert (profile.folder, profile.name) == ((tmp_path / "project").resolve(), "b")


def test_a_name_is_looked_for_here_then_at_home_and_a_path_is_a_path(here: Path, workspace: Workspace) -> None:
    places = [here / "profiles" / "mine.yaml", workspace.profiles / "mine.yaml"]
    for path in (*places, here / "a.yaml"):
        path.write_text("script: a.py")
    for path in places:
        assert find("mine", workspace, here) == path
        path.unlink()
    with pytest.raises(ProfileNotFoundError):
        find("mine", workspace, here)
    for text, cwd in (("a.yaml", here), ("./a.yaml", here), (str(here / "a.yaml"), Path("/")), ("a", here)):
        assert find(text, workspace, cwd).resolve() == here / "a.yaml"


def test_a_list_has_broken_ones_too_and_each_name_once(here: Path, workspace: Workspace) -> None:
    for path, text in (("good.yaml", "script: a.py"), ("broken.yaml", "script: 5"), ("notes.txt", "no profile")):
        (here / "profiles" / path).write_text(text)
    (workspace.profiles / "good.yaml").write_text("script: other.py")
    entries = {entry.name: entry for entry in list_profiles(workspace, here)}
    assert "notes" not in entries
    assert (entries["good"].source, entries["good"].path) == ("here", here / "profiles" / "good.yaml")
    assert entries["broken"].profile is None
    assert "expected text" in str(entries["broken"].error)
    shipped = [entry for entry in entries.values() if entry.path.parent == shipped_profiles()]
    assert len(shipped) > 3
    assert all(entry.source == "shipped" and entry.profile for entry in shipped)


def test_a_folder_with_other_yaml_has_only_its_profiles(tmp_path: Path) -> None:
    files = {
        "good": "script: a.py", "broken": "script: a.py\nlancher: x", "settings": "lr: 1", "empty": "",
        "several": "script: a.py\n---\nscript: b.py", "tagged": "a: !custom 3", "list": "[1, 2]",
        "study": "profile: good\nspace: {lr: [1, 2]}",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(content)
    (tmp_path / "binary.yaml").write_bytes(bytes(range(128, 256)))
    assert [(entry.name, entry.profile is None) for entry in profiles_in(tmp_path)] == [
        ("broken", True), ("good", False),
    ]  # fmt: skip


# --- recovery


@table(
    ("recovery", "key", "meant"),
    [
        ("standart", "recovery", "standard"),
        ("{policy: standart}", "recovery.policy", "standard"),
        ("{max_atempts: 5}", "recovery.max_atempts", "max_attempts"),
        ("{max_attempts: 0}", "recovery.max_attempts", None),
        ("{backoff: {bass: 5}}", "recovery.backoff.bass", "base"),
        ("{backoff: {base: .nan}}", "recovery.backoff.base", None),
        ("{ends_on: hang}", "recovery.ends_on", None),
        ("{ends_on: [hang, hangs]}", "recovery.ends_on.1", "hang"),
        ("{policy: off, ends_on: [hang]}", "recovery.ends_on", None),
        ("{policy: off, ladders: {cuda_oom: [restart]}}", "recovery.ladders", None),
        ("{hang_after: 0}", "recovery.hang_after", None),
        ("{ladders: {cuda_om: [restart]}}", "recovery.ladders.cuda_om", "cuda_oom"),
        ("{ladders: {import_error: [restart]}}", "recovery.ladders.import_error", None),
        ("{ladders: {cuda_oom: {restart: 1}}}", "recovery.ladders.cuda_oom", None),
        ("{ladders: {cuda_oom: [shrink_bach]}}", "recovery.ladders.cuda_oom.0", "shrink_batch"),
        ("{ladders: {cuda_oom: [[restart, shrink_bach]]}}", "recovery.ladders.cuda_oom.0.1", "shrink_batch"),
        ("{ladders: {cuda_oom: [stop, restart]}}", "recovery.ladders.cuda_oom.0", None),
        ("{ladders: {cuda_oom: [{rollback: 0}]}}", "recovery.ladders.cuda_oom.0", None),
    ],
)
def test_a_mistake_has_its_place_and_the_nearest_right_word(recovery: str, key: str, meant: str | None) -> None:
    (problem,) = problems_of_recovery(recovery)
    assert (problem.key, problem.nearest) == (key, meant)


@table(
    ("recovery", "policy"),
    [("off", "off"), ("false", "off"), ("{policy: off}", "off"), ("restart-only", "restart-only"), *(
        (text, "standard") for text in (
            "standard", "{}", "{max_attempts: 10000, hang_after: 1}",
            "{backoff: {base: 0, factor: 1.5, max: 60, jitter: 1}}", "{ends_on: []}", "{ladders: {default: restart}}",
            "{ladders: {nan_loss: [{rollback: 2}, [lower_lr, tighter_clip], {wait: 5, lower_lr: }, stop]}}",
        )
    )],
)  # fmt: skip
def test_what_may_be_written(recovery: str, policy: str) -> None:
    assert read_profile(f"script: a.py\nrecovery: {recovery}", FILE).form.recovery["policy"] == policy
