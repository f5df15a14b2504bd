"""The run directory: made for one run, locked while a learner uses it, taken up again when the run is resumed."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from common.errors import CheckpointError, RunDirectoryError
from learner.shared.durable import old_of, replace_text

_SHARED: Final = ("replay", "control", "actors", "models", "quarantine-trainer.json", "quarantine-ingest.json")
"""Names in ``shared/``; a draft of one is called ``.NAME.part``."""


def default_run_dir(name: str) -> Path:
    """A new name under ``runs/``, also for two runs that begin in the same second."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read an earlier run's directory; no learner uses it meanwhile.

    Raises:
        RunDirectoryError: a learner is using it, or it is no run's directory.
    """
    try:
        lock = os.open(path / "lock", os.O_RDONLY)
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read as a run's directory: lock: {error.strerror}") from error
    try:
        _lock(lock, fcntl.LOCK_SH, path)
        yield
    finally:
        os.close(lock)


def _lock(fd: int, kind: int, path: Path) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunDirectoryError(f"{path}: another learner is using this run directory") from None


@dataclass(frozen=True)
class RunIdentity:
    """Which run it is, and how many times it has been started: 1, 2, 3."""

    run_id: str
    incarnation: int
    origin: Mapping[str, Any] | None = None
    """Where the run began from (``Origin.record``); None for a run that began from nothing."""


class RunDir:
    """A fresh directory with private permissions, or that of a run that is to go on.

    A first start makes ``shared/``, then ``config.yaml``, then a first state in ``checkpoints/``, and ``run.json``
    last. So a directory with none of the last two, nor other work, is that of a start that was killed: begun anew.

    Args:
        path: where it is.
        resume: go on with the run in it, if there is one.
        origin: where a new run begins from.

    Raises:
        RunDirectoryError: it cannot be made, another learner uses it, it holds a run although none is to be resumed, or
            one that cannot be.
    """

    def __init__(self, path: Path, *, resume: bool = False, origin: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.shared = path / "shared"
        self.identity = RunIdentity(secrets.token_hex(8), 1, origin)
        self._has_begun = False
        with self.writing():
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _lock(self._lock, fcntl.LOCK_EX, self.path)
                self._take_up(resume)
            except BaseException:
                os.close(self._lock)
                raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around whatever writes here.

        Raises:
            RunDirectoryError: for an OSError.
        """
        try:
            yield
        except OSError as error:
            raise RunDirectoryError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _take_up(self, resume: bool) -> None:
        work = work_in(self.path)
        if not work:
            self._claim()
        elif resume:
            self._resume(work)
        else:
            raise RunDirectoryError(
                f"{self.path}: expected a new run directory, found a run ({', '.join(work)}); "
                "go on with it (--resume) or name another run_dir"
            )

    def _claim(self) -> None:
        """Begin anew, after sweeping up what a start that was killed has left."""
        if self.shared.exists():
            names = {path.name.removeprefix(".").removesuffix(".part") for path in self.shared.iterdir()}
            strange = sorted(names.difference(_SHARED))
            if strange:
                raise RunDirectoryError(f"{self.shared}: expected nothing, or what a learner made, found {strange[0]}")
            shutil.rmtree(self.shared)
        self.shared.mkdir()

    def _resume(self, work: Sequence[str]) -> None:
        if not states_in(self.path):
            raise RunDirectoryError(
                f"{self.path}: cannot be resumed: found {', '.join(work)}, but no state of training in checkpoints/; "
                f"put checkpoints/ back, or begin a new run from the saved policy (--from {self.path} --run-dir NEW)"
            )
        before = identity_of(self.path)
        self.identity = replace(before, incarnation=before.incarnation + 1)
        self.shared.mkdir(exist_ok=True)
        (self.path / "endpoints.json").unlink(missing_ok=True)

    @property
    def is_resumed(self) -> bool:
        return self.identity.incarnation > 1

    def begin(self) -> None:
        """From here on the run can be resumed, and no later start of it will have this incarnation."""
        self.write_text("run.json", json.dumps(asdict(self.identity), indent=2) + "\n")
        self._has_begun = True

    def require_in_place(self) -> None:
        """See that the directory at ``path`` is still the one that this learner has locked.

        Raises:
            CheckpointError: it was renamed, removed or replaced; whatever is there now is not to be written to.
        """
        try:
            is_ours = os.path.samestat((self.path / "lock").stat(), os.fstat(self._lock))
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            raise CheckpointError(
                f"{self.path}: expected the directory that this learner has locked, found none or another: it was "
                "renamed, removed or replaced while the learner runs; nothing more is saved until it is put back"
            )

    def write_text(self, name: str, text: str) -> None:
        """Written whole or not at all; it lasts."""
        with self.writing():
            replace_text(self.path / name, text)

    def write_json(self, name: str, value: object) -> None:
        """Written whole or not at all: somebody may be waiting for the file."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def close(self) -> None:
        """Give the lock back; a run that never began leaves none behind that would have to be removed."""
        if not (self._has_begun or self.is_resumed):
            shutil.rmtree(self.shared, ignore_errors=True)
        os.close(self._lock)


def require_free(path: Path) -> None:
    """See that no learner uses a run directory, before anything expensive is begun.

    Raises:
        RunDirectoryError: one does.
    """
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # ``RunDir`` says what is wrong with it.
        lock = os.open(path / "lock", os.O_RDONLY)
        try:
            _lock(lock, fcntl.LOCK_SH, path)
        finally:
            os.close(lock)


def work_in(path: Path) -> list[str]:
    """What there is in a directory that only a run that has begun leaves there; empty if there is nothing to lose."""
    found = [name for name in ("run.json",) if (path / name).exists()]
    found += [f"{name}/" for name in ("best", "final") if (path / name).exists() or old_of(path / name).exists()]
    found += ["checkpoints/"] * bool(states_in(path))
    found += [f"{periodic.name}/" for periodic in _numbered(path)]
    found += ["metrics.csv"] * _has_records(path / "metrics.csv")
    # A start that is killed leaves ``shared/`` beside its configuration; alone the file was copied from a run.
    found += ["config.yaml"] * ((path / "config.yaml").exists() and not (path / "shared").exists())
    return found


def states_in(path: Path) -> list[Path]:
    """The states of training in a run's directory, newest first."""
    return _numbered(path / "checkpoints")


def identity_of(path: Path) -> RunIdentity:
    """Which run is in a directory: as ``run.json`` says, or without that file the manifest of the newest state.

    Raises:
        RunDirectoryError: ``run.json`` is damaged, or there is neither.
    """
    sources = [path / "run.json"] if (path / "run.json").exists() else [s / "manifest.json" for s in states_in(path)]
    failure: Exception | None = None
    for source in sources:
        try:
            found = json.loads(source.read_text())
            return RunIdentity(str(found["run_id"]), int(found["incarnation"]), found.get("origin"))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            failure = failure or error
    asked = sources[0] if sources else path / "run.json"
    raise RunDirectoryError(
        f"{asked}: expected run_id and incarnation of the run, found {failure!r}; put the file back, or remove "
        "run.json: then the newest of checkpoints/ says which run it is"
    )


def _numbered(path: Path) -> list[Path]:
    """Directories named by an opt step, the highest first."""
    found = (below for below in path.glob("[0-9]*") if below.name.isdecimal() and below.is_dir())
    return sorted(found, key=lambda below: -int(below.name))


def _has_records(metrics: Path) -> bool:
    """Whether there is a row below the heading."""
    try:
        with metrics.open() as file:
            return len([line for line, _ in zip(file, range(2), strict=False)]) == 2
    except FileNotFoundError:
        return False
