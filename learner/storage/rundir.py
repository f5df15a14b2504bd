"""The run directory: made for one run, locked while a learner uses it, opened again when the run is resumed."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from common.config.pool_config import POOL
from common.depth import parse_json
from common.errors import CheckpointError, NotInPlaceError, RunDirectoryError
from common.hints import nearest_path
from common.interfaces import RunIdentity
from common.shared.mapped import holding_alone
from learner.replay.memory import ReplayMemory
from learner.shared.durable import clean_up, locate, naming_write_errors, old_of, replace_text, target_of
from learner.storage.run_lock import RunLock

log = logging.getLogger(__name__)
ENDPOINTS: Final = "endpoints.json"
"""The file that says where the newest life of a run listens, or listened."""
FORMER_ENDPOINTS: Final = "endpoints-before.json"
"""The same of the run's former life."""
_SHARED: Final = (
    "replay",
    "sources",
    "control",
    "actors",
    "models",
    "candidates",
    "quarantine-trainer.json",
    "quarantine-ingest.json",
    "ranks.json",
    "rank-actors",
    "cordons.json",
    "followed",
    "limits.json",
    "score.json",
    "mirror",
    "trial",
)
"""Names in ``shared/``; a draft of one is called ``.NAME.part``."""


def default_run_dir(name: str) -> Path:
    """Make up a new name under ``runs/``; two runs that begin in the same second get different names."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class RunDir:
    """The directory of a run, new or resumed; only its owner may look inside, and only one learner may use it.

    A first start makes ``shared/``, then ``config.yaml``, then a first checkpoint in ``checkpoints/``, and ``run.json``
    last. If a directory has no checkpoint, no ``run.json`` and no other results of a run, a start was killed there. A
    new run begins in this directory, and in that of a run that ended before it stored a row, unless it is resumed.

    Args:
        path: of the directory.
        resume: resume the run in the directory, if there is one.
        origin: where a new run begins from (``Origin.record``).

    Raises:
        RunDirectoryError: the directory cannot be made, another learner uses it, it holds a run although ``resume`` is
            False, or it holds a run that cannot be resumed.
    """

    def __init__(self, path: Path, *, resume: bool = False, origin: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.shared = path / "shared"
        self.identity = RunIdentity(secrets.token_hex(8), 1, origin)
        self.n_ranks = 1
        """The most ranks with which the run has begun so far, each with its own shard."""
        self._has_begun = False
        with self.writing():
            _require_no_file(path)
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = RunLock(path)
            try:
                self._claim_or_resume(resume)
            except BaseException:
                self._lock.close()
                raise

    def writing(self) -> AbstractContextManager[None]:
        """A context for everything that writes to the directory; see ``naming_write_errors``."""
        return naming_write_errors(self.path)

    def _claim_or_resume(self, resume: bool) -> None:
        work = find_work(self.path)
        if work and resume:
            self._resume(work)
        elif not work or self._remove_fruitless(work):
            self._claim()
        else:
            raise RunDirectoryError(
                f"{self.path}: expected a new run directory, found a run ({', '.join(work)}); "
                "go on with it (--resume) or name another run_dir"
            )

    def _claim(self) -> None:
        """Begin a new run, after removing the files of a start that was killed."""
        if self.shared.exists():
            names = {path.name.removeprefix(".").removesuffix(".part") for path in self.shared.iterdir()}
            strange = sorted(names.difference(_SHARED))
            if strange:
                raise RunDirectoryError(f"{self.shared}: expected only files that a learner makes, found {strange[0]}")
            shutil.rmtree(self.shared)
        self.shared.mkdir()

    def _remove_fruitless(self, work: Sequence[str]) -> bool:
        """Remove a run that has stored no row, since its parts failed for example; return whether it was such a run."""
        if set(work) - {"run.json", "final/", "checkpoints/"} or [*self.shared.glob("quarantine-*.json")]:
            return False
        rows, states = 1, [state.name for state in list_states(self.path)]
        with suppress(OSError, RunDirectoryError), holding_alone(self.shared):  # No ingest process stores rows.
            rows = ReplayMemory.open_saved(self.shared / "replay").committed
        if rows or states != ["0"] or _read_ranks(self.path) > 1:
            return False
        log.info("%s: the run that began here has stored no row: a new run takes its place", self.path)
        for name in (ENDPOINTS, FORMER_ENDPOINTS, "run.json"):
            (self.path / name).unlink(missing_ok=True)
        for path in (old_of(self.path / "final"), *(self.path / name for name in ("final", "checkpoints", POOL))):
            if path.exists():
                shutil.rmtree(path)
        return True

    def _resume(self, work: Sequence[str]) -> None:
        for directory in (self.path, self.path / "checkpoints"):
            clean_up(directory)
        if all(name.startswith("rank-") for name in work):
            raise RunDirectoryError(
                f"{self.path}: cannot be resumed: found shards of other ranks ({', '.join(work)}), but not the run of "
                "rank 0; torchrun may have given the ranks to other hosts than before: start them with --node-rank, or "
                "put the run directory on a file system that all hosts share"
            )
        if not list_states(self.path):
            raise RunDirectoryError(
                f"{self.path}: cannot be resumed: found {', '.join(work)}, but no state of training in checkpoints/; "
                f"put checkpoints/ back, or begin a new run from the saved policy (--from {self.path} --run-dir NEW)"
            )
        before = read_identity(self.path)
        # The directory may be an older copy of the run. The clock knows of the starts that the copy does not, so the
        # versions of models stay above those that actors have from these starts. If the clock was ahead then, the
        # learner learns it from the actors (``ControlBlock.acting_incarnation``).
        self.identity = replace(before, incarnation=max(before.incarnation + 1, int(time.time())))
        self.n_ranks = _read_ranks(self.path)
        self.shared.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            (self.path / ENDPOINTS).replace(self.path / FORMER_ENDPOINTS)

    @property
    def is_resumed(self) -> bool:
        return self.identity.is_resumed

    def begin(self) -> None:
        """Write ``run.json``: from now on the run can be resumed, and a later start has a higher incarnation."""
        ranks = {"n_ranks": self.n_ranks} if self.n_ranks > 1 else {}
        self.write_json("run.json", asdict(self.identity) | ranks)
        self._has_begun = True

    def note_ranks(self, n_ranks: int) -> None:
        """Write into ``run.json`` with how many ranks the run has begun; a higher earlier number stays."""
        if n_ranks > self.n_ranks:
            self.n_ranks = n_ranks
            self.begin()

    def require_in_place(self) -> None:
        """Check that the directory at ``path`` is still the directory that this learner has locked.

        Raises:
            NotInPlaceError: it was renamed, removed or replaced, so nothing may be written to ``path``.
            CheckpointError: its disk fails.
        """
        try:
            is_in_place = self._lock.is_in_place
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be looked at, so nothing is saved: {error.strerror}") from error
        if not is_in_place:
            raise NotInPlaceError(
                f"{self.path}: expected the directory that this learner has locked, found none or another: it was "
                "renamed, removed or replaced while the learner runs; nothing more is saved until it is put back"
            )

    def require_for_child(self) -> None:
        """Check that a process which is started now and opens the files at ``path`` finds those of this run.

        Raises:
            NotInPlaceError: it would not; the directory may be put back.
            RunDirectoryError: the directory exists no more.
            CheckpointError: its disk fails.
        """
        if self._lock.is_removed:
            raise RunDirectoryError(f"{self.path}: the directory was removed while the learner runs")
        self.require_in_place()

    def write_text(self, name: str, text: str) -> None:
        """Write a file whole or not at all; it outlasts a power cut."""
        with self.writing():
            replace_text(self.path / name, text)

    def write_json(self, name: str, value: object) -> None:
        """Write a file whole or not at all, so that a process that waits for the file never reads half of it."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def close(self) -> None:
        """Release the lock. If the run never began, remove the files that would keep a later start from beginning.

        A run that has a checkpoint can be resumed although ``run.json`` could not be written, so all its files stay.
        """
        if not (self._has_begun or self.is_resumed or list_states(self.path)):
            (self.path / "config.yaml").unlink(missing_ok=True)  # Alone, it would look like the file of a run.
            shutil.rmtree(self.shared, ignore_errors=True)
        self._lock.close()


def require_writable(path: Path) -> None:
    """Raise RunDirectoryError if the directory of a run can neither be made nor written; nothing is made."""
    with naming_write_errors(path):
        _require_no_file(path)
        TemporaryFile(dir=next(place for place in (path / "x").absolute().parents if place.exists())).close()


def _require_no_file(path: Path) -> None:
    """Raise RunDirectoryError if something else than a directory is at the path."""
    if os.path.lexists(path) and not path.is_dir():
        found = "a file" if path.exists() else "a link that leads nowhere"
        raise RunDirectoryError(f"{path}: expected a directory, found {found}")


def require_readable(path: Path) -> None:
    """Check that this user may look into the directory of a run: it is open to its owner only.

    Raises:
        RunDirectoryError: it is somebody else's.
    """
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            (path / "run.json").stat()
    except PermissionError as error:
        raise RunDirectoryError(
            f"{path}: cannot be read: {error.strerror}; only the user who began the run may look inside: run the "
            "command as that user, or give the whole directory to another user (chown -R)"
        ) from error


def require_run(path: Path) -> None:
    """As ``require_readable``, for a command that does nothing without the directory.

    Raises:
        RunDirectoryError: it is somebody else's, or there is no such directory.
    """
    require_readable(path)
    if not path.is_dir():
        found = "a file" if path.exists() else "none"
        raise RunDirectoryError(f"{path}: expected a run's directory, found {found}{nearest_path(path)}")


def find_work(path: Path) -> list[str]:
    """The names of files and directories that only a run that has begun leaves behind; empty if there are none."""
    found = [name for name in ("run.json",) if (path / name).exists()]
    found += [f"{name}/" for name in ("best", "final") if locate(path / name) is not None]
    found += ["checkpoints/"] * bool(list_states(path))
    found += [f"{periodic.name}/" for periodic in list_numbered(path)]
    found += [f"{file.parent.name}/run.json" for file in sorted(path.glob("rank-*/run.json"))]
    found += ["metrics.csv"] * _has_records(path / "metrics.csv")
    # A start that was killed leaves ``shared/`` beside ``config.yaml``; a user's copy of the file has none beside it.
    found += ["config.yaml"] * ((path / "config.yaml").exists() and not (path / "shared").exists())
    return found


def has_rows(path: Path | None) -> bool:
    """Whether there is a run to resume that still has its rows."""
    return path is not None and bool(find_work(path)) and (path / "shared" / "replay").exists()


def list_states(path: Path) -> list[Path]:
    """The checkpoints in a run's directory, the newest first."""
    return list_numbered(path / "checkpoints")


def read_identity(path: Path) -> RunIdentity:
    """Read which run is in a directory: from ``run.json``, or without it from the newest checkpoint's manifest.

    Raises:
        RunDirectoryError: ``run.json`` is damaged, or the directory has neither of the two.
    """
    sources = [path / "run.json"] if (path / "run.json").exists() else [s / "manifest.json" for s in list_states(path)]
    failure: Exception | None = None
    for source in sources:
        try:
            found = parse_json(source.read_text())
            return RunIdentity(str(found["run_id"]), int(found["incarnation"]), found.get("origin"))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            failure = failure or error
    asked = sources[0] if sources else path / "run.json"
    raise RunDirectoryError(
        f"{asked}: expected run_id and incarnation of the run, found {failure!r}; put the file back, or remove "
        "run.json: then the newest of checkpoints/ says which run it is"
    )


def _read_ranks(path: Path) -> int:
    """The most ranks with which a run has begun, from ``run.json``; 1 without the file, as for a run of one rank."""
    file = path / "run.json"
    try:
        found = parse_json(file.read_text()).get("n_ranks", 1) if file.exists() else 1
    except (OSError, ValueError, AttributeError) as error:
        raise RunDirectoryError(f"{file}: expected the entries of a run, found {error!r}") from error
    if not isinstance(found, int):
        raise RunDirectoryError(f"{file}: n_ranks: expected the number of ranks, found {found!r}")
    return found


def list_numbered(directory: Path) -> list[Path]:
    """The directories in ``directory`` that are named by an opt step, the highest first.

    A learner may put another directory in the place of one of them meanwhile: ``read_whole`` reads them.
    """
    places = list[Path]()
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        # An entry knows by itself that it is a directory. A further look at the path could find it gone.
        places = [directory / entry.name for entry in entries if entry.is_dir()]
    found = {target_of(place) if place.suffix == ".old" else place for place in places}
    return sorted((path for path in found if path.name.isdecimal()), key=lambda path: -int(path.name))


def _has_records(metrics: Path) -> bool:
    """Whether the file has a row below its heading."""
    try:
        with metrics.open("rb") as file:  # A damaged file may be no text.
            return len([*islice(file, 2)]) == 2
    except FileNotFoundError:
        return False
