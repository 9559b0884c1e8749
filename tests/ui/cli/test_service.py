"""The recorder as a service of the user's own systemd."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gputui.ui.main import command


class Desk:
    """A user's folders and a systemctl that notes what it is asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = folder / "home dir"
        self.asked = folder / "asked"
        self.unit = folder / ".config" / "systemd" / "user" / "gputui.service"
        (folder / "bin").mkdir()
        self.systemctl = folder / "bin" / "systemctl"
        self.answers(0)
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "GPUTUI_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")

    def answers(self, code: int, text: str = "") -> None:
        self.systemctl.write_text(
            f'#!/bin/sh\necho "$@" >> {self.asked}\necho "{text}" >&2\necho active\nexit {code}\n'
        )
        self.systemctl.chmod(self.systemctl.stat().st_mode | stat.S_IXUSR)

    def run(self, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(command, ["--home", str(self.home), "agent", "service", *arguments], input=answer)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_print_changes_nothing(desk: Desk) -> None:
    result = desk.run("install", "--print", "--interval", "0.5")
    assert result.exit_code == 0
    argv = (sys.executable, "-m", "gputui", "--home", desk.home, "--record", "--interval", "0.5")
    assert "ExecStart=" + " ".join(f'"{word}"' for word in argv) in result.output
    assert "KillMode=process" in result.output
    assert not desk.unit.exists()
    assert not desk.asked.exists()


def test_the_unit_has_the_outputs_and_refuses_what_the_recorder_would(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    options = ("--prometheus", "127.0.0.1:9464", "--output", str(file), "--rotate", "100MB")
    assert desk.run("install", "--yes", *options).exit_code == 0
    assert " ".join(f'"{word}"' for word in ("--interval", "1", *options)) in desk.unit.read_text()
    assert json.loads(desk.run("status", "--json").output)["for_this_home"]
    for flags in (("--prometheus", "nowhere"), ("--output", "samples.txt"), ("--rotate", "1GiB")):
        assert desk.run("install", "--print", *flags).exit_code == 2, flags


def test_it_is_shown_before_anybody_is_asked_and_no_is_no(desk: Desk) -> None:
    result = desk.run("install", answer="n\n")
    assert result.exit_code == 3
    assert result.output.index("[Service]") < result.output.index("Write it")
    assert not desk.unit.exists()
    assert not desk.asked.exists()


def test_install_status_uninstall(desk: Desk) -> None:
    result = desk.run("install", "--yes")
    assert result.exit_code == 0, result.output
    assert "loginctl enable-linger" in result.output
    assert desk.asked.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable gputui.service",
        "--user restart gputui.service",
    ]
    status = json.loads(desk.run("status", "--json").output)
    assert status["installed"]
    assert status["active"] == "active"
    assert status["for_this_home"]
    elsewhere = CliRunner().invoke(command, ["--home", "/elsewhere", "agent", "service", "status"])
    assert "another home" in elsewhere.output
    assert desk.run("uninstall", "--yes").exit_code == 0
    assert not desk.unit.exists()
    assert "--user disable --now gputui.service" in desk.asked.read_text()
    assert "no unit is installed" in desk.run("status").output


def test_a_file_of_somebody_else_is_left_alone(desk: Desk) -> None:
    desk.unit.parent.mkdir(parents=True)
    desk.unit.write_text("[Service]\nExecStart=/bin/true\n")
    for arguments in (("install", "--yes"), ("uninstall", "--yes")):
        result = desk.run(*arguments)
        assert result.exit_code == 3
        assert "not written by gputui" in result.output
    assert desk.unit.read_text().endswith("/bin/true\n")
