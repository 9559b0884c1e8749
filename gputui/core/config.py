"""The paths of a home; there is one per user and machine."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from msgspec import Struct

PRIVATE_DIR_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
DATABASE_FILE = "gputui.db"
# For the group of a shared home, which new folders inherit.
SHARED_DIR_MODE = 0o2750
SHARED_FILE_MODE = 0o640

# SQLite's WAL needs one machine's memory: https://www.sqlite.org/wal.html, "Overview". Names as in
# /proc/self/mountinfo.
NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "wekafs", "vast",
})  # fmt: skip
# Most of what is mounted through FUSE is a service or another machine; these show a local disk.
LOCAL_FUSE_FILE_SYSTEMS = frozenset({
    "fuse.fuse-overlayfs", "fuse.bindfs", "fuse.mergerfs", "fuse.unionfs", "fuse.gocryptfs", "fuse.ntfs-3g",
})  # fmt: skip


def file_identity(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when a file is written again or replaced; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def is_network_file_system(kind: str | None) -> bool:
    """Return whether a file system, by its name in /proc/self/mountinfo, may be shared with other
    machines; what is not known counts as local, but for FUSE."""
    if kind is None:
        return False
    is_fuse = kind == "fuse" or kind.startswith("fuse.")
    return kind in NETWORK_FILE_SYSTEMS or (is_fuse and kind not in LOCAL_FUSE_FILE_SYSTEMS)


class Workspace(Struct, frozen=True):
    """The two directories that make a home, and the names of what is in them."""

    profiles: Path
    state: Path

    @property
    def place(self) -> Path:
        """The folder that ``--home`` and GPUTUI_HOME take; in the XDG directories, which have no such
        folder, the state folder."""
        home = self.state.parent
        if self == Workspace(home / "profiles", home / "state"):
            return home
        return self.state

    @property
    def label(self) -> str:
        """``the home /data/home``, or ``the state folder /data/gputui``."""
        kind = "state folder" if self.place == self.state else "home"
        return f"the {kind} {self.place}"

    @property
    def database(self) -> Path:
        return self.state / DATABASE_FILE

    @property
    def runs(self) -> Path:
        return self.state / "runs"

    @property
    def alerts(self) -> Path:
        """This machine's changes to alert rules; may be missing."""
        return self.profiles.parent / "alerts.yaml"

    @property
    def notify(self) -> Path:
        """The recipients of messages; may be missing."""
        return self.profiles.parent / "notify.yaml"

    @property
    def notices(self) -> Path:
        """A file for each message that is being sent, held by the process that sends it."""
        return self.state / "notices"

    @property
    def record(self) -> Path:
        """The retention settings of this machine; may be missing."""
        return self.profiles.parent / "record.yaml"

    @property
    def gpus(self) -> Path:
        """The GPUs that runs of this home use; may be missing."""
        return self.profiles.parent / "gpus.yaml"

    @property
    def study_files(self) -> Path:
        """Study files of this home, found by name; may be missing."""
        return self.profiles.parent / "studies"

    @property
    def studies(self) -> Path:
        """A folder for each study: its specification, its process's lock and log."""
        return self.state / "studies"

    @property
    def targets(self) -> Path:
        """The targets of this machine; may be missing."""
        return self.profiles.parent / "targets.yaml"

    @property
    def agent_lock(self) -> Path:
        """Held exclusively by the one agent of this state directory; its text says who it is."""
        return self.state / "agent.lock"

    @property
    def agent_stopped(self) -> Path:
        """Present from when a person ended the agent until the next start: no shim starts one
        then."""
        return self.state / "agent.stopped"

    @property
    def views_lock(self) -> Path:
        """Held shared by every open view, so that the agent knows whether anybody looks."""
        return self.state / "views.lock"

    @property
    def agent_log(self) -> Path:
        return self.state / "agent.log"

    @property
    def doorbell(self) -> Path:
        """Touched after a command row was written: the agent listens there."""
        return self.runs / ".doorbell"

    @property
    def settings(self) -> Path:
        """The settings of the screen."""
        return self.profiles.parent / "settings.json"

    @property
    def scenario(self) -> Path:
        """Present in a demo workspace: the simulated GPUs and the faults planned for them."""
        return self.state / "simulated.yaml"

    def run_dir(self, run_id: str) -> Path:
        return self.runs / run_id

    def create(self) -> None:
        """Make the directories, private to the user unless the agent shares them. Raises OSError."""
        for directory in (self.profiles, self.state, self.runs):
            # Whoever may write into a folder above could put another in its place.
            for folder in reversed((directory, *directory.parents)):
                if not folder.is_dir():
                    folder.mkdir(exist_ok=True, mode=PRIVATE_DIR_MODE)
        for directory in (self.state, self.runs):
            if stat.S_IMODE(directory.stat().st_mode) != SHARED_DIR_MODE:
                directory.chmod(PRIVATE_DIR_MODE)


def locate(
    home: str | os.PathLike[str] | None = None,
    environ: dict[str, str] | None = None,
    *,
    checkout: Path | None = None,
) -> Workspace:
    """The workspace of ``--home``, else ``$GPUTUI_HOME``, else a checkout, else the XDG directories.

    Links are followed: a run's processes are known by its folder.

    Args:
        home: That of ``--home``, None without.
        environ: None for this process's.
        checkout: The folder of the checkout that gputui runs from, if it does.
    """
    env = environ
    if env is None:
        env = dict(os.environ)
    chosen = home or env.get("GPUTUI_HOME") or checkout
    if chosen:
        base = Path(os.path.realpath(Path(chosen).expanduser()))
        if (base / DATABASE_FILE).exists():
            # The state folder of a package's home, which somebody shares.
            return Workspace(profiles=base / "profiles", state=base)
        return Workspace(profiles=base / "profiles", state=base / "state")
    user_home = Path(env.get("HOME") or Path.home())
    config_home = Path(env.get("XDG_CONFIG_HOME") or user_home / ".config")
    state_home = Path(env.get("XDG_STATE_HOME") or user_home / ".local" / "state")
    return Workspace(profiles=config_home / "gputui" / "profiles", state=Path(os.path.realpath(state_home / "gputui")))


def own_checkout(prefix: str = sys.prefix) -> Path | None:
    """The checkout that this gputui is run from by its own ``.venv``, as ``make run`` makes it;
    else None. It is its own home, whoever else on the machine has a gputui."""
    checkout = Path(__file__).resolve().parents[2]
    is_own = Path(prefix).name == ".venv" and Path(prefix).parent.resolve() == checkout
    # Another user's is no home of this one.
    if is_own and os.access(checkout / "state" / "README.md", os.R_OK):
        return checkout
    return None


def shipped_profiles() -> Path:
    """The folder of the profiles that come with gputui: inside the wheel, or the checkout's own."""
    return _shipped("profiles")


def shipped_studies() -> Path:
    """The folder of the study files that come with gputui."""
    return _shipped("studies")


def shipped_pages() -> Path:
    """The folder of the documentation that comes with gputui."""
    return _shipped("docs")


def _shipped(name: str) -> Path:
    packaged = Path(__file__).resolve().parents[1] / f"shipped_{name}"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / name


def file_system_of(path: Path, mountinfo: str) -> str | None:
    """The type of the file system that holds ``path``, by the text of /proc/self/mountinfo."""
    best = ""
    best_type = None
    target = str(path)
    for line in mountinfo.splitlines():
        mount_part, _, right = line.partition(" - ")
        fields = mount_part.split()
        tail = right.split()
        if len(fields) < 5 or not tail:
            continue
        mount = fields[4].replace("\\040", " ")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best = mount
            best_type = tail[0]
    return best_type
