"""The home of a command that names none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gputui.core.config import is_network_file_system, locate, own_checkout

CHECKOUT = Path(__file__).parents[2].resolve()


def test_a_checkout_with_a_venv_of_its_own_is_its_own_home() -> None:
    assert own_checkout(str(CHECKOUT / ".venv")) == CHECKOUT
    for elsewhere in ("/usr", str(CHECKOUT), "/home/anna/.venv"):
        assert own_checkout(elsewhere) is None


def test_what_is_said_goes_before_it() -> None:
    checkout = Path("/checkout")
    environ = {"HOME": "/h", "GPUTUI_HOME": "/said"}
    assert locate("/given", environ, checkout=checkout).state == Path("/given/state")
    assert locate(None, environ, checkout=checkout).state == Path("/said/state")
    assert locate(None, {"HOME": "/h"}, checkout=checkout).state == Path("/checkout/state")
    assert locate(None, {"HOME": "/h"}).state == Path("/h/.local/state/gputui")
    assert locate("/given", environ).label == "the home /given"
    assert locate("/given", environ).place == Path("/given")
    assert locate(None, {"HOME": "/h"}).place == Path("/h/.local/state/gputui")
    assert locate(None, {"HOME": "/h"}).label == "the state folder /h/.local/state/gputui"
    assert locate(None, {"HOME": "/h", "XDG_STATE_HOME": "/x"}).label == "the state folder /x/gputui"


def test_a_state_folder_may_be_named_as_the_home(tmp_path: Path) -> None:
    (tmp_path / "gputui.db").touch()
    assert locate(tmp_path).database == tmp_path / "gputui.db"


def test_a_home_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    imported = "import os; os.umask(0); from gputui.core.config import locate"
    code = f"{imported}; locate({str(tmp_path / 'a/home')!r}, {{}}).create()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")} == {0o700}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_file_systems_that_other_machines_may_share_are_known() -> None:
    for kind, expected in [
        *((kind, True) for kind in ("nfs4", "gpfs", "wekafs", "beegfs", "lustre", "ceph", "glusterfs", "9p")),
        *((f"fuse.{kind}", True) for kind in ("juicefs", "s3fs", "gcsfuse", "glusterfs", "sshfs", "of-next-year")),
        ("fuse", True),
        *((kind, False) for kind in ("ext4", "xfs", "tmpfs", "overlay", "zfs", "fuseblk", "fuse.fuse-overlayfs", None)),
    ]:
        assert is_network_file_system(kind) is expected
