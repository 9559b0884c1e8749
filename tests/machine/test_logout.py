"""The effect of a logout on the agent, by systemd's settings."""

from __future__ import annotations

from gputui.machine.systemd import would_end
from tests.tables import table

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
DESKTOP = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-terminal.scope\n"
SYSTEM = "0::/system.slice/docker-4711.scope\n"
YES = "[Login]\nKillUserProcesses=yes\n"


@table(
    ("cgroup", "settings", "lingers", "ends"),
    [
        (SESSION, [], False, False),
        (SESSION, ["[Login]\n#KillUserProcesses=yes\n"], False, False),
        (SESSION, [YES], False, True),
        (SESSION, [YES], True, True),  # lingering keeps the manager, not the session's scope
        (SESSION, [YES, "[Login]\nKillUserProcesses = no\n"], False, False),
        (SESSION, ["KillUserProcesses=on"], False, True),
        (DESKTOP, [], False, True),
        (DESKTOP, [YES], True, False),
        (SYSTEM, [YES], False, False),
        ("", [YES], False, False),
    ],
)
def test_what_a_logout_does(cgroup: str, settings: list[str], lingers: bool, ends: bool) -> None:
    threat = would_end(cgroup, settings, lingers=lingers)
    assert (threat is not None) is ends
    assert threat is None or "enable-linger" in threat.remedy
