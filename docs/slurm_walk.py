"""Plays the first minutes with a Slurm target and takes their pictures: ``python -m docs.slurm_walk``.

From targets.yaml to a finished run that reached its time limit once, on a Slurm of its own. Prints each command with
its answer and the seconds since the beginning. Needs what docs/screenshots.py needs, Debian's slurm-wlm and munge, and
root.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
import time
from pathlib import Path

import click

from docs.screenshots import save, settle
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.settings import Settings
from tests.conftest import wait_until
from tests.machines import Machine
from tests.runs.executors.slurm_cluster import PATH, SlurmCluster
from tests.ui.tui.conftest import StillFeed

TARGETS = """\
lab:
  kind: slurm
  partition: main
  time: 2m
  warn: 30
  poll: 2
"""
SIZE = (120, 36)
WAIT_SECONDS = 300.0


class Walk:
    """What a person types, and what the screen shows then."""

    def __init__(self, machine: Machine, cluster: SlurmCluster) -> None:
        self.machine, self.cluster = machine, cluster
        self.began = time.monotonic()

    def type(self, *words: str) -> str:
        click.echo(f"\n{time.monotonic() - self.began:5.0f} s $ {shlex.join(('gputui', *words))}")
        answer = self.machine.gputui(*words)
        click.echo(answer.rstrip())
        return answer

    def picture(self, name: str) -> None:
        asyncio.run(self._picture(name))

    async def _picture(self, name: str) -> None:
        feed = StillFeed(self.machine.workspace, now=time.time())
        app = GputuiApp(
            self.machine.workspace, feed, feed.read(), host_name="ws-kepler", settings=Settings(theme="dark")
        )
        async with app.run_test(size=SIZE) as pilot:
            await pilot.press("enter")
            await settle(pilot, app)
            drawing = app.export_screenshot(title="gputui")
        save(drawing, name)

    def run(self) -> None:
        self.machine.workspace.targets.write_text(TARGETS)
        profile = self.machine.profile("train")
        self.type("target", "check", "lab")
        self.type("run", profile, "--on", "lab", "--dry-run")
        self.type("run", profile, "--on", "lab", "--set", "steps=900", "--set", "seconds=0.1")
        run_id = "train-1"

        def place() -> dict[str, object]:
            found = self.machine.json("show", run_id)["placement"] or {}
            assert isinstance(found, dict)
            return found

        wait_until(lambda: place().get("state") == "running", WAIT_SECONDS, "the job")
        self.type("ps")
        wait_until(lambda: place().get("reason") == "BeginTime", WAIT_SECONDS, "the end of its time")
        self.type("ps")
        self.picture("slurm-requeued")
        # Slurm would wait for two minutes.
        self.cluster.run("scontrol", "update", f"JobId={place()['job']}", "StartTime=now")
        self.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
        self.type("show", run_id)
        self.picture("slurm-done")
        steps = [step for _, step in self.machine.steps(run_id)]
        assert steps == list(range(900)), "each step once"
        assert len(self.machine.json("show", run_id)["attempts"]) == 1
        click.echo(f"\n{time.monotonic() - self.began:.0f} s in all")


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    cluster = SlurmCluster()
    try:
        cluster.start()
        os.environ |= {"SLURM_CONF": cluster.env["SLURM_CONF"], "PATH": PATH}
        with tempfile.TemporaryDirectory(prefix="walk-") as folder:
            machine = Machine(Path(folder))
            try:
                Walk(machine, cluster).run()
            finally:
                machine.close()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
