"""Text as an enemy would write it, in every place that text from outside comes from."""

from __future__ import annotations

import json

from gputui.core.config import Workspace
from tests.homes import GIB, Home, uuid
from tests.stories import overnight, search

MARK = "zq"
"""Stands in each text, so that a test can see that it was shown."""

CORPUS = (
    "\x1b[2J\x1b[H\x1b]0;zq owned\x07",
    "\x1b]52;c;cHduZWQ=\x07zq \x1b]8;;http://zq\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\zq\x1b[?1049h\x1b[?1003h\x1bc",
    "\x9b31mzq\x9d0;x\x9c\x90q\x9c",
    "zq[bold red]not markup[/] [link=http://x]y[/link] [@click=app.exit]z[/] $foo {bar}",
    "zq\u202egnirts\u202c \u2066iso\u2069 \u061c\u200e\u200f",
    "z\u200bq\ufeff\u2060\u00ad\u034f\u180e zq",
    "zq 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ⚠️ 🫠",
    "zq 漢字かな 한국어 ｆｕｌｌ ｗｉｄｅ",
    "zq Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘",
    "zq\r\nsecond\rthird\x08\x08\x7f\x00\x0b\x0c\x0e\x0f\t|",
    "zq\x1b",
    "zq" + "A" * 10_000,
    "zq" + "漢" * 5_000,
    "zq \ue000\uf8ff\U000f0000 \ufffe \U0010ffff",
    "",
)


def fill(home: Home) -> None:
    """A night on which everything that has a name has a hostile one."""
    workspace: Workspace = home.workspace
    overnight(home)
    connection = home.connection
    runs = [row[0] for row in connection.execute("SELECT run_id FROM runs ORDER BY sequence")]
    for number, run_id in enumerate(runs):
        text = CORPUS[number % len(CORPUS)]
        params = {CORPUS[place]: CORPUS[-place - 2] for place in range(8)}
        connection.execute(
            "UPDATE runs SET name = ?, profile = ?, reason = ?, waiting_for = ?, params = ? WHERE run_id = ?",
            (text, CORPUS[number + 1], CORPUS[number + 2], CORPUS[number + 3], json.dumps(params), run_id),
        )
    search(home, trials=len(CORPUS))
    spec = json.loads(connection.execute("SELECT spec FROM studies").fetchone()[0])
    spec["space"] = [{"name": text, "kind": "choice", "choices": [CORPUS[1], 2]} for text in CORPUS[:3]]
    spec["objectives"][0]["metric"] = CORPUS[2]
    connection.execute(
        "UPDATE studies SET name = ?, profile = ?, reason = ?, spec = ?", (*CORPUS[:3], json.dumps(spec))
    )
    importances = [{"objective": CORPUS[2], "name": text, "share": 0.5} for text in CORPUS[:3]]
    connection.execute("UPDATE studies SET importances = ?", (json.dumps(importances),))
    for number, text in enumerate(CORPUS):
        connection.execute(
            "UPDATE trials SET reason = ?, origin = ?, params = ? WHERE number = ?",
            (text, text, json.dumps(dict.fromkeys(CORPUS[:3], text)), number),
        )
    for number, text in enumerate(CORPUS):
        home.alert("disk", text, subject=text, subject_id=str(number), run_id=runs[number % len(runs)])
        home.event(text, subject=text or None, severity="error")
        home.incident("vit-b16-1", 3, f"kind_{number}", text, evidence=(text, text), actions=(text,), reason=text)
        home.transition("vit-b16-1", "running", "recovering", text, 100.0)
    for index in range(8):
        entries = [
            {"pid": 9000 + place, "user": text, "command": text, "memory_bytes": GIB, "kind": "C"}
            for place, text in enumerate(CORPUS[index : index + 3])
        ]
        home.processes(index, *entries)
        facts = json.loads(connection.execute("SELECT facts FROM gpus WHERE uuid = ?", (uuid(index),)).fetchone()[0])
        facts["name"] = CORPUS[index]
        connection.execute(
            "UPDATE gpus SET name = ?, facts = ? WHERE uuid = ?", (CORPUS[index], json.dumps(facts), uuid(index))
        )
        connection.execute(
            "INSERT INTO gpu_events (at, uuid, event, code, text) VALUES (?, ?, 'xid', ?, ?)",
            (home.now - 50, uuid(index), 40 + index, CORPUS[index]),
        )
    connection.execute("UPDATE agent SET driver_version = ?", (CORPUS[0],))
    line: dict[str, object] = {"step": 9450, "time": home.now, "rank": 0, "loss": 1.0}
    home.metrics("vit-b16-1", 3, [line | {text[:200]: float(number) for number, text in enumerate(CORPUS) if text}])
    _logs(workspace)
    profiles = workspace.profiles
    (profiles / "evil.yaml").write_text(
        f"name: evil\ndescription: {json.dumps(CORPUS[4])}\nlauncher: python\nscript: x.py\ngpus: 0\n"
        f"params: {{steps: {{default: 1, help: {json.dumps(CORPUS[0])}}}, text: {json.dumps(CORPUS[5])}}}\n"
    )
    (profiles / "broken.yaml").write_text(f"name: broken\n{json.dumps(CORPUS[0])}: {json.dumps(CORPUS[1])}\n")


def _logs(workspace: Workspace) -> None:
    for attempt, run_id in ((3, "vit-b16-1"), (1, "gpt2-124m-1")):
        folder = workspace.run_dir(run_id) / f"attempts/{attempt}/nodes/0/ranks/x/attempt_0/0"
        folder.mkdir(parents=True)
        text = "\n".join(CORPUS).encode() + b"\n\xff\xfe zq not UTF-8 \xc3\x28\n"
        (folder / "stdout.log").write_bytes(text)
        (folder / "stderr.log").write_bytes(text)
