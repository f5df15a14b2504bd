"""A mirror: copies of a run in an object store or a directory of another host, by fsspec.

    claims/EPOCH           a learner that begins to write here; later learners have higher epochs
    objects/HASH           bytes, compressed with zstd, under the BLAKE2 of what they decompress to
    states/EPOCH-NUMBER    a state of the run: names of its objects, and its small files; written after all its objects

Only the learner with the highest whole claim owns the mirror. A claim is made in steps:

    1. the run's directory keeps the new epoch (``mirror.json``), and each further try takes the same one
    2. the claim is written
    3. the newest state is read: if its epoch is none that the directory knows, another learner has gone on with the run
    4. the claims are listed: if there is a higher one, another learner has the run

Each of two learners first writes and then reads: the former one writes a state and then lists the claims, and the new
one writes its claim and then reads the newest state. So either the new learner goes on from that state, or the former
one sees the claim before it acknowledges any row of the state. This needs a store in which each read and each listing
sees all writes that ended before it, as S3, GCS and Azure have them; it needs no conditional writes. Names of states
begin with the epoch, so a late state of a former learner is never the newest one.

A claim that is not whole, as on a full disk, counts for nobody: its writer has not read the newest state yet. Whoever
fails after its claim removes it.

If the highest claim is lower than a learner's newest epoch, the learner has claimed another place: it was started while
the disk of the mirror was not mounted. It claims the mirror again with a higher epoch. So a place whose highest claim
is not the learner's newest epoch is not the place where it last wrote.

A reader takes the newest state that is whole. The objects of the newest two states are kept.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import zstandard

from common.depth import parse_json
from common.errors import CrossborderError, RunDirectoryError, TakenOverError
from learner.shared.durable import READ_TRIES, replace_text
from learner.storage.mirror_store import MirrorStore
from learner.storage.mirrored_state import INLINE, MirroredState, make_compressor

INLINE_BYTES: Final = 32 << 10
"""Files that are no larger than this when compressed travel in the state itself."""
MEMORY_BYTES: Final = 64 << 20
"""Files up to this size are read at once. Larger ones, such as checkpoints, must not change while they are sent."""
CHUNK_BYTES: Final = 1 << 20
_JITTER: Final = 1 << 20
"""As many epochs for each millisecond: until the year 2248 they fit into 63 bits."""
_STATES_KEPT: Final = 2
_EPOCHS_KEPT: Final = 1000
Source = io.BufferedReader | io.BytesIO
_CLAIMS, _OBJECTS, _STATES = "claims", "objects", "states"


class MirrorAwayError(OSError):
    """The mirror is not in its place; what was sent since the last state may be somewhere else."""


@dataclass(frozen=True)
class Past:
    """The epochs whose states a run's directory has gone on from."""

    epoch: int = 0
    """All states up to this epoch: the run was restored with it. 0: it was not."""
    own: tuple[int, ...] = ()
    """Epochs that learners of this directory have claimed since, some of them perhaps in other places than the mirror:
    another learner may have claimed the mirror between two of them."""

    def has(self, epoch: int) -> bool:
        """Whether the directory has gone on from the states of this epoch."""
        return epoch <= self.epoch or epoch in self.own

    @property
    def newest(self) -> int:
        """The newest of these epochs."""
        return max(self.epoch, *self.own, 0)

    def add(self, epoch: int) -> Past:
        """With an epoch that a learner of this directory claims. The oldest ones are forgotten."""
        return Past(self.epoch, (*self.own, epoch)[-_EPOCHS_KEPT:])


class Mirror:
    """The mirror of one run, at this URL.

    Raises:
        PluginError: the driver of such places is not installed. If it imports a package only when it connects, the
            first call raises this.
    """

    def __init__(self, url: str) -> None:
        self.url, self.epoch = url, 0
        self.store = MirrorStore(url)
        self._pending = 0
        """The epoch that the run's directory keeps for a claim which could not be made yet; 0: none."""
        self._number = 0
        self._whole, self._left = set[str](), set[str]()
        """Objects that are whole, and those that others have left: a kill may have come while one was written."""
        self._states, self._claims = list[str](), list[str]()
        """States, and claims of earlier owners."""
        self._unsure = list[str]()
        """States that are perhaps not whole, since their writing failed."""
        self._newest: list[MirroredState] = []
        """The newest states, as many as are kept, the newest last."""

    # States and claims.

    def find_newest(self) -> MirroredState | None:
        """The newest state that is whole; None if there is none.

        Raises:
            OSError: the mirror cannot be reached.
        """
        for _ in range(READ_TRIES):
            found, removed = self.store.list_names(_STATES), 0
            for name in reversed(found):
                try:
                    return MirroredState.from_bytes(self.store.read(_STATES, name))
                except FileNotFoundError:
                    removed += 1  # Its owner has removed it meanwhile, and a newer one is there.
                except (ValueError, LookupError, TypeError):
                    continue  # A learner was killed while it wrote the state.
            if not removed:
                return None
        raise OSError(f"{self.url}: each state was removed while it was read; try again")

    def claim(
        self, run_id: str, past: Past, keep: Callable[[Past], None], *, holds: bool = False
    ) -> MirroredState | None:
        """Become the owner: all learners with earlier claims end when they look at the claims next.

        Args:
            run_id: of the run that will be mirrored.
            past: the epochs that the run's directory knows of.
            keep: called with an epoch more before that is claimed.
            holds: whether this learner has made the newest of these claims itself, to restore the run. If others have
                claimed the mirror since, it does not take the run from them, so that of several learners the last one
                goes on.

        Returns:
            The newest state, from which the mirror goes on; None if the mirror is empty.

        Raises:
            RunDirectoryError: the mirror is that of another run.
            TakenOverError: another learner has gone on with the run, so the directory is an older copy of it.
            OSError: the mirror cannot be reached, or the epoch cannot be kept. The next try takes the same epoch.
        """
        self._require_same(run_id, past)
        if not self._pending:
            epoch = self._choose_epoch(past)
            if holds:  # Whoever comes after this look has a higher epoch than the one that is chosen already.
                self.epoch = past.newest
                self.require_owner()
            keep(past.add(epoch))
            self._pending = epoch
        newest = self._claim(run_id, past.add(self._pending), self._pending)
        self._pending = 0
        return newest

    def _choose_epoch(self, past: Past) -> int:
        """A higher epoch than all that are known."""
        claims = self.store.list_names(_CLAIMS)
        # The time, in milliseconds, keeps epochs in order although claims are removed, and the random part keeps two
        # learners apart that start at one moment.
        highest = max(int(claims[-1]) if claims else 0, *past.own, time.time_ns() // 1_000_000 * _JITTER)
        return highest + 1 + secrets.randbelow(_JITTER)

    def _claim(self, run_id: str, past: Past, epoch: int) -> MirroredState | None:
        whose = {"host": socket.gethostname(), "pid": os.getpid(), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        self.epoch = epoch
        try:
            self.store.write(_CLAIMS, _name(epoch), json.dumps(whose).encode())
            newest = self._require_same(run_id, past)
            self._go_on_from(newest)
        except (OSError, CrossborderError):
            if self.store.has_hung:  # What comes late is this claim, which the next try makes again.
                self.store.has_hung = False
            else:
                with suppress(OSError):
                    self.store.remove(_CLAIMS, [_name(epoch)])  # Another learner need not end for one that fails.
            raise
        return newest

    def return_to(
        self, run_id: str, past: Past, keep: Callable[[Past], None], *, is_late: bool = False
    ) -> MirroredState | None:
        """Go on as the owner, after the mirror was away or another process of this life has died.

        Args:
            run_id: of the run.
            past: the epochs that the run's directory knows of; the newest one is that of this life.
            keep: called with an epoch more before it is claimed, if this life has claimed another place, or none.
            is_late: whether this life has claimed nothing yet: the newest epoch is that of an earlier life. Whoever has
                claimed the mirror since that one goes on, and a copy of the directory does not.

        Returns:
            The newest state, from which the mirror goes on.

        Raises:
            RunDirectoryError: the mirror is that of another run.
            TakenOverError: another learner has claimed the mirror since, or has gone on with the run.
            MirrorAwayError: there is no claim.
            OSError: the mirror cannot be reached.
        """
        self.epoch = past.newest
        owner, _ = self._find_owner()
        if owner == self.epoch and not is_late:
            self._pending = 0
            newest = self._require_same(run_id, past)
            self._go_on_from(newest)
            return newest
        is_elsewhere = owner is None and not self.store.list_names(_CLAIMS)  # A claim may be there that is not whole.
        if is_elsewhere or (owner is not None and owner > self.epoch):
            self.require_owner()
        return self.claim(run_id, past, keep)

    def _go_on_from(self, newest: MirroredState | None) -> None:
        self._newest = [newest] if newest is not None else []
        self._states = self.store.list_names(_STATES)
        self._claims = [name for name in self.store.list_names(_CLAIMS) if name < _name(self.epoch)]
        own = [int(name.rpartition("-")[2]) for name in self._states if name.startswith(_name(self.epoch))]
        self._number, self._unsure = max(own, default=0), []
        there = set(self.store.list_names(_OBJECTS))
        # A kill may have left a state whose objects were sent to another place: its disk was mounted just then.
        self._whole = newest.objects & there if newest is not None else set()
        self._left = there - self._whole
        self.require_owner()

    def _require_same(self, run_id: str, past: Past) -> MirroredState | None:
        newest = self.find_newest()
        if newest is not None and newest.run_id != run_id:
            raise RunDirectoryError(
                f"storage.mirror: {self.url}: expected an empty place or the mirror of run {run_id}, found that of run "
                f"{newest.run_id}; name another place, or go on with that run (--resume {self.url})"
            )
        if newest is not None and not past.has(newest.epoch):
            raise TakenOverError(
                f"{self.url}: another learner has gone on with the run since this run directory was last in use; go on "
                f"from the mirror in another directory (--resume {self.url} --run-dir NEW)"
            )
        return newest

    def _find_owner(self) -> tuple[int | None, str]:
        """The newest epoch whose claim is whole, and whose it is; None if there is none."""
        for _ in range(READ_TRIES):
            for name in reversed(self.store.list_names(_CLAIMS)):
                try:
                    whose = self.store.read(_CLAIMS, name).decode()
                    parse_json(whose)
                except FileNotFoundError:
                    break  # A later owner has removed it meanwhile, or its writer, which has failed.
                except ValueError:
                    continue  # It is not whole.
                return int(name), whose
            else:
                return None, ""
        raise OSError(f"{self.url}: each claim was removed while it was read; try again")

    def require_owner(self) -> None:
        """Check that no other learner has claimed the mirror since.

        Raises:
            TakenOverError: another learner has.
            MirrorAwayError: there is no claim, or only earlier ones: the mirror was removed, or its disk is not
                mounted, or was not when this learner claimed it.
            OSError: the mirror cannot be reached.
        """
        owner, whose = self._find_owner()
        if owner is None:
            raise MirrorAwayError(f"{self.url}: expected the claim of this learner, found none: is its disk mounted?")
        if owner > self.epoch:
            raise TakenOverError(f"{self.url}: another learner has taken over this run: {whose}")
        if owner < self.epoch:
            raise MirrorAwayError(
                f"{self.url}: expected the claim of this learner, found only earlier ones: its disk was not mounted "
                "when the learner claimed it, and is claimed again"
            )

    def write(self, state: MirroredState) -> None:
        """Write a state whose objects are all there, then remove objects that neither it nor the state before needs.

        When this returns, a later owner will go on from this state or from a later one.

        Raises:
            TakenOverError: another learner has claimed the mirror; it may not know of this state.
            OSError: the mirror cannot be reached.
        """
        self.require_owner()
        self._number += 1
        name = f"{_name(self.epoch)}-{self._number:012d}"
        self._unsure.append(name)
        self.store.write(_STATES, name, state.to_bytes())
        self._unsure.remove(name)
        self._states.append(name)
        self._newest = [*self._newest, state][-_STATES_KEPT:]
        try:
            self.require_owner()
        except MirrorAwayError:
            # Its disk was mounted since the first look, and the state names objects that are elsewhere.
            self.store.remove(_STATES, [name])
            raise
        self.store.remove(_CLAIMS, self._claims)
        self._claims = []
        self.store.remove(_STATES, self._states[:-_STATES_KEPT])
        self._states = self._states[-_STATES_KEPT:]
        self.tidy(set())

    def tidy(self, needed: set[str]) -> None:
        """Remove states that are perhaps not whole, and objects that neither the newest states nor ``needed`` name.

        The caller has found itself to be the owner just now.

        Raises:
            OSError: the mirror cannot be reached.
        """
        self.store.remove(_STATES, self._unsure)
        self._unsure = []
        used = needed.union(*(state.objects for state in self._newest))
        self._left |= self._whole - used  # If not all of them can be removed, none of them counts as whole.
        self._whole &= used
        self.store.remove(_OBJECTS, sorted(self._left - used))
        self._left &= used

    # Objects.

    def has(self, name: str) -> bool:
        """Whether an object is there and whole."""
        return name in self._whole

    def put(self, source: Source) -> str:
        """Send a file from its begin, unless it is there; return the name of the object.

        Raises:
            OSError: the mirror cannot be reached, or the file was changed while it was sent.
        """
        source.seek(0)
        name = hashlib.file_digest(source, _hash).hexdigest()
        if name not in self._whole:
            self._left.add(name)
            try:
                written = self._send(source, name)
            except OSError:
                with suppress(OSError):
                    self.store.remove(_OBJECTS, [name])  # A full disk has no room for parts.
                raise
            self._whole.add(name)
            self._left.discard(name)
            self.store.sent_bytes += written
        return name

    def _send(self, source: Source, name: str) -> int:
        """Send an object; return how many bytes it has there."""
        source.seek(0)
        digest, packing, written = _hash(), make_compressor().compressobj(), 0
        with self.store.open(_OBJECTS, name, "wb") as (target, go_on):
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                written += int(target.write(packing.compress(chunk)))
                go_on()
            written += int(target.write(packing.flush()))
        if digest.hexdigest() != name:
            raise OSError(f"{getattr(source, 'name', name)}: it was changed while it was sent to {self.url}")
        return written

    def put_file(self, source: Source) -> str:
        """Send a file; return what a state has for it: the file itself if it is small, or else the object's name."""
        begin = source.read(MEMORY_BYTES + 1)
        if len(begin) > MEMORY_BYTES:
            return self.put(source)
        small = make_compressor().compress(begin)
        if len(small) <= INLINE_BYTES:
            return f"{INLINE}{base64.b64encode(small).decode()}"
        return self.put(io.BytesIO(begin))  # Other processes may write to the file, as to the table of actors.

    def get(self, name: str, target: BinaryIO) -> None:
        """Write the content of an object, or of a small file of a state, to ``target``.

        Raises:
            FileNotFoundError: the mirror has no such object; a newer state does not need it.
            OSError: it cannot be read, or is damaged.
        """
        if name.startswith(INLINE):
            target.write(zstandard.ZstdDecompressor().decompress(base64.b64decode(name.removeprefix(INLINE))))
            return
        digest, found = _hash(), 0
        with self.store.open(_OBJECTS, name, "rb") as (source, go_on):
            for chunk in zstandard.ZstdDecompressor().read_to_iter(source):
                digest.update(chunk)
                found += target.write(chunk)
                go_on()
        if digest.hexdigest() != name:
            raise OSError(f"{self.url}: object {name}: its {found} bytes are not those that were written")

    def get_bytes(self, name: str) -> bytes:
        """The content of an object."""
        target = io.BytesIO()
        self.get(name, target)
        return target.getvalue()


def _hash() -> Any:
    return hashlib.blake2b(digest_size=20)


def _name(epoch: int) -> str:
    return f"{epoch:020d}"


EPOCH_FILE: Final = "mirror.json"
"""In a run directory that is mirrored: the epochs that it knows of."""


def keep_past(run: Path, past: Past, **more: bool) -> None:
    """Write the epochs that a run's directory knows of, and ``restored=True`` if it was restored with the newest."""
    replace_text(run / EPOCH_FILE, json.dumps({**asdict(past), **more}))


def read_past(run: Path) -> tuple[Past, bool]:
    """The epochs that a run's directory knows of, and whether the run was restored and not begun since.

    A run that was never mirrored has none.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    path = run / EPOCH_FILE
    try:
        found: dict[str, Any] = parse_json(path.read_text()) if path.exists() else {"epoch": 0}
        return Past(int(found["epoch"]), tuple(int(epoch) for epoch in found.get("own", ()))), "restored" in found
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(f"{path}: expected the epoch of the run's mirror, found {error!r}") from error
