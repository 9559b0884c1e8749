"""Every mistake in a profile is answered with its line and with what was probably meant, all of them at once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.config import Workspace, shipped_profiles
from gputui.profiles import loading
from gputui.profiles.loading import ProfileNotFoundError, find, list_profiles, load, read_profile
from gputui.profiles.params import Parameter
from gputui.yaml_forms.document import MAX_BYTES
from gputui.yaml_forms.problems import ProfileError
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


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("off", "off"),
        ("false", "off"),
        ("'off'", "off"),
        ("Off", "off"),
        ("standard", "standard"),
        ("restart-only", "restart-only"),
        ("{max_attempts: 2}", "standard"),
    ],
)
def test_recovery_off_is_off(text: str, policy: str) -> None:
    assert read_profile(f"script: a.py\nrecovery: {text}", FILE).form.recovery["policy"] == policy


def test_off_elsewhere() -> None:
    form = read_profile("script: a.py\nmetrics: off\nalerts: off", FILE).form
    assert form.metrics == []
    assert form.alerts is None


def test_the_long_form_of_a_parameter() -> None:
    text = (
        "script: a.py\nparams:\n"
        "  lr: {default: 1, help: how fast, min: 0, max: 10}\n  opt: {default: sgd, choices: [sgd, adam]}"
    )
    parameters = read_profile(text, FILE).parameters
    assert parameters["lr"] == Parameter("lr", 1, "how fast", (), 0, 10)
    assert parameters["opt"].choices == ("sgd", "adam")


GOOD = "script: train.py\n"


def mistakes() -> list[tuple[str, str]]:
    """Text and answer of each case in mistakes.txt."""
    content = (Path(__file__).parent / "mistakes.txt").read_text("utf-8").split("\n", 1)[1]
    cases = [(text[1:], answer) for text, answer in re.findall(r"((?:(?!=> ).*\n)+)=> (.*)\n", content)]
    assert len(cases) > 50
    return cases


@pytest.mark.parametrize(("text", "line"), mistakes())
def test_one_mistake_one_line(text: str, line: str) -> None:
    assert the_problem_of(text) == line


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n"])
def test_an_empty_file(text: str) -> None:
    assert mentions(the_problem_of(text), "x.yaml: ", "empty", "script", "module", "command")


def test_unknown_keys_without_a_neighbour_are_told_what_there_is() -> None:
    problem = the_problem_of(GOOD + "checkpoints: {pattern: x, zzz: 1}")
    assert mentions(problem, "x.yaml:2: checkpoints.zzz: ", "dir, pattern, resume")


@pytest.mark.parametrize(
    ("key", "meant"), [("processes", "nproc"), ("nproc-per-node", "nproc"), ("num_gpus", "gpus"), ("cwd", "workdir")]
)
def test_what_other_tools_call_a_key_is_known(key: str, meant: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read_profile(GOOD + f"{key}: 2", FILE)
    (problem,) = caught.value.problems
    assert (problem.key, problem.nearest) == (key, meant)


@pytest.mark.parametrize(
    ("gates", "problem"),
    [
        ("{gpu_utilisation: 70}", "gates.gpu_utilisation: unknown gate; did you mean gpu_utilization?"),
        ("{speed: 70}", "gates.speed: unknown gate; there are loss_rise, gradients, learning_rate, "),
        ("{gradients: much}", "gates.gradients: "),
        ("{gradients: .inf}", "gates.gradients: "),
    ],
)
def test_gates_are_known_by_name_and_thresholds_are_numbers(gates: str, problem: str) -> None:
    assert the_problem_of(GOOD + f"gates: {gates}").partition(": ")[2].startswith(problem)


def test_all_mistakes_at_once_in_the_order_of_the_file() -> None:
    text = (
        "script: a.py\nlauncher: torchrn\nenv:\n  A: [1]\nscript: b.py\n"
        "roles: {x: y}\nparams: {a: [1], b: {}}\nfoo: 1\n"
    )
    problems = problems_of(text)
    assert [problem.split(": ")[0] for problem in problems] == [
        "x.yaml:2", "x.yaml:4", "x.yaml:5", "x.yaml:6", "x.yaml:7", "x.yaml:7", "x.yaml:8",
    ]  # fmt: skip


def test_a_problem_has_its_parts() -> None:
    with pytest.raises(ProfileError) as caught:
        read_profile(GOOD + "  \nvisible: uid", FILE)
    (problem,) = caught.value.problems
    assert problem.to_json() == {
        "file": "x.yaml", "line": 3, "column": 1, "key": "visible", "problem": None,
        "expected": "uuid or index", "found": "'uid'", "nearest": "uuid",
    }  # fmt: skip


def test_what_is_written_never_drives_the_terminal() -> None:
    for problem in problems_of('"\\e]0;x\\a": 1\nscript: 5\ndescription: ["\\e[2J"]\nname: "\\e[31mx"\n'):
        assert "\x1b" not in problem
        assert "\x07" not in problem


def test_long_values_are_shortened() -> None:
    assert len(the_problem_of(GOOD + f"launcher: {'x' * 5000}")) < 200


@given(st.text(max_size=120))
def test_any_text_is_answered(text: str) -> None:
    try:
        read_profile(text, FILE)
    except ProfileError as error:
        assert all("\n" not in str(problem) for problem in error.problems)


@given(
    st.dictionaries(
        st.sampled_from([*loading.ProfileForm.model_fields, "other"]),
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

    def test_the_largest_text_is_answered_in_time(self, tmp_path: Path) -> None:
        path = tmp_path / "big.yaml"
        path.write_text("script: " + "x" * (MAX_BYTES - 100))
        with pytest.raises(ProfileError, match="expected text of at most 4096 characters"):
            load(path)

    def test_a_byte_order_mark_is_no_mistake(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfscript: a.py\n")
        assert load(tmp_path / "a.yaml").form.script == "a.py"

    def test_paths_below_the_current_directory_are_shown_short(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "profiles").mkdir()
        (tmp_path / "profiles" / "x.yaml").write_text("script: a.py\nfoo: 1")
        with pytest.raises(ProfileError, match=r"^profiles/x\.yaml:2: foo: "):
            load(tmp_path / "profiles" / "x.yaml")

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

    def test_by_its_own_name_when_no_file_is_called_so(self, here: Path, workspace: Workspace) -> None:
        (here / "profiles" / "file.yml").write_text("script: a.py\nname: inner")
        assert find("inner", workspace, here) == here / "profiles" / "file.yml"

    def test_not_found_says_where_it_looked_and_what_is_near(self, here: Path, workspace: Workspace) -> None:
        (here / "profiles" / "digits-mine.yaml").write_text("script: a.py")
        with pytest.raises(ProfileNotFoundError) as caught:
            find("digit-mine", workspace, here)
        text = str(caught.value)
        assert mentions(text, "digit-mine")
        assert str(workspace.profiles) in text
        assert text.endswith("did you mean digits-mine?")

    @pytest.mark.parametrize(
        "name", ["", "a\nb", "a\0b", "x" * 5000, "../../etc/passwd", "~nobody-there/x", "/", "\x1b[2J/x"]
    )
    def test_odd_names_are_answered_in_one_line(self, name: str, here: Path, workspace: Workspace) -> None:
        try:
            with pytest.raises(ProfileError):
                load(find(name, workspace, here))
        except ProfileNotFoundError as error:
            assert "\n" not in str(error)
            assert "\x1b" not in str(error)

    def test_a_missing_path_names_its_neighbour(self, here: Path, workspace: Workspace) -> None:
        (here / "train.yaml").write_text("script: a.py")
        with pytest.raises(ProfileNotFoundError, match=r"trian\.yaml: no such file; did you mean .*train\.yaml\?"):
            find("trian.yaml", workspace, here)

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

    def test_one_folder_under_two_names_is_listed_once(self, workspace: Workspace) -> None:
        (workspace.profiles / "a.yaml").write_text("script: a.py")
        sources = {entry.source for entry in list_profiles(workspace, workspace.profiles.parent)}
        assert "home" not in sources


@pytest.mark.parametrize("path", sorted(shipped_profiles().glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_profile_loads(path: Path) -> None:
    profile = load(path)
    assert profile.name == path.stem
    assert profile.description or path.read_text().startswith("#"), "says what it is"
