"""The message of rank 0 when a life of the run begins: it says which run it is, and from which opt step it goes on."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.config.run_config import RunConfig
from common.errors import RunDirectoryError
from common.interfaces import RunIdentity
from learner.ranks.group import Group
from learner.storage.rundir import RunDir
from learner.storage.training_state import BIRTH, Moment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """The run, and the moment at which this life of it begins.

    All ranks have the same incarnation, and so the same versions of models.
    """

    path: str
    run_id: str
    incarnation: int
    origin: Mapping[str, Any] | None
    opt_steps: int
    seconds: float
    n_ranks: int
    """The most ranks with which the run has begun before; 1 for a new run."""

    @classmethod
    def of(cls, directory: RunDir, moment: Moment | None) -> Beginning:
        """The beginning of this life of a run that rank 0 has opened; a resumed run begins at its checkpoint."""
        at, identity = moment or BIRTH, directory.identity
        path = str(directory.path.absolute())
        return cls(
            path,
            identity.run_id,
            identity.incarnation,
            identity.origin,
            opt_steps=at.opt_steps,
            seconds=at.seconds,
            n_ranks=directory.n_ranks,
        )

    def tell(self, group: Group) -> None:
        """Tell the other ranks, which wait in ``hear``."""
        group.broadcast(json.dumps(asdict(self)).encode())

    @classmethod
    def hear(cls, group: Group) -> Beginning:
        """Wait for the message of rank 0.

        Raises:
            RankLostError: rank 0 has ended.
        """
        return cls(**json.loads(group.broadcast(b"")))

    def place_directory(self, config: RunConfig, group: Group) -> RunConfig:
        """The configuration of a rank with its directory, also if rank 0 has chosen that of the run."""
        if config.run_dir is not None:
            return config
        return config.model_copy(update={"run_dir": group.place.directory(Path(self.path))})

    def adopt(self, directory: RunDir, rank: int) -> None:
        """Give the directory of another rank the identity of the run.

        Raises:
            RunDirectoryError: it is that of another run, or it is new although this rank has had a shard.
        """
        found = directory.identity
        if found.is_resumed and found.run_id != self.run_id:
            raise RunDirectoryError(
                f"{directory.path}: expected the shard of run {self.run_id}, as on rank 0, found run {found.run_id}; "
                "torchrun may have given the ranks to other hosts than before: start them with --node-rank, or put "
                "the run directory on a file system that all hosts share"
            )
        if rank < self.n_ranks and not found.is_resumed:
            raise RunDirectoryError(
                f"{directory.path}: expected the shard of rank {rank}, since run {self.run_id} has begun with "
                f"{self.n_ranks} ranks, found none; torchrun may have given the ranks to other hosts than before: "
                "start them with --node-rank, or put the run directory on a file system that all hosts share. If the "
                f"shard is lost, set n_ranks to {rank} in run.json of rank 0: then this rank begins with an empty shard"
            )
        if not found.is_resumed and self.incarnation > 1:
            log.info("rank %d is new in run %s: it begins with an empty shard", rank, self.run_id)
        directory.n_ranks = self.n_ranks
        directory.identity = RunIdentity(self.run_id, self.incarnation, self.origin)

    def moment(self, own: Moment) -> Moment:
        """The moment at which a rank goes on: it counts its own steps, and has the opt steps and the time of rank 0."""
        return replace(own, opt_steps=self.opt_steps, seconds=self.seconds)


def begin_in_order(group: Group, begin: Callable[[], None], note_ranks: Callable[[int], None]) -> None:
    """Begin this life of the run on rank 0 first, and then on the other ranks; return once all have begun.

    If rank 0 fails before its ``run.json`` is written, its next start begins a new run. So no other rank may have an
    identity or acknowledged rows before that. The number of ranks is noted once all ranks have begun, since a later
    start expects a shard of each; and before any rank acknowledges rows, so that no shard with rows is unknown.

    Raises:
        RankLostError: another rank has ended.
    """
    if group.place.leads:
        begin()
    group.broadcast(b"")
    if not group.place.leads:
        begin()
    group.gather(b"", 1)
    note_ranks(group.place.n_ranks)
    group.gather(b"", 1)


def warn_of_idle_shards(run_dir: Path, n_ranks: int) -> None:
    """Log which shards of a run no rank draws from, since the run had more ranks before."""
    found = (re.fullmatch(r"rank-(\d+)", path.name) for path in run_dir.glob("rank-*"))
    idle = sorted(int(name[1]) for name in found if name is not None and int(name[1]) >= n_ranks)
    if idle:
        log.warning("%s: the number of ranks is %d: nobody draws from the rows of the ranks %s", run_dir, n_ranks, idle)
