"""``AdminService``: requests of the people who run a learner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import grpc
import numpy as np

from common.config.nested import overlay
from common.config.run_config import RunConfig
from common.errors import ConfigError, RefusedError
from common.settings import validate
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import version_to_pb
from learner.ingest.audit import AuditLog
from learner.ingest.cordons import MAX_HOSTS, Selection
from learner.ingest.core import IngestCore
from learner.ingest.gate import current_caller
from learner.ingest.joining import MAX_HOST, check_text
from learner.shared.actor_table import ActorState, cut_host, host_of, plain_values

RECENT_SECONDS: Final = 600.0
"""For this long ``Status`` names an actor that left or was lost."""
_STATES: Final = {
    state.label: pb.ActorState.Value(f"ACTOR_STATE_{state.name}")
    for state in ActorState
    if state is not ActorState.UNUSED
}
"""By state of the actor table, the state of the protocol that has the same name."""
_SAME: Final = {field.name for field in pb.ActorStatus.DESCRIPTOR.fields} - {"state"}
"""Fields of ``ActorStatus``; those that are columns of the actor table are copied by name."""


class AdminServicer(pb_grpc.AdminServiceServicer):
    """``AdminService`` over an ``IngestCore``.

    Args:
        core: the state that all requests share.
        audit: notes every call once its change is made; ``Admission`` notes calls that are refused or fail.
    """

    def __init__(self, core: IngestCore, audit: AuditLog) -> None:
        self._core, self._audit = core, audit

    async def Status(  # noqa: N802
        self, _: pb.StatusRequest, __: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.StatusResponse:
        core, control = self._core, self._core.control
        newest, now = core.models.newest(), time.monotonic()
        core.publish_totals()  # The totals of this moment, since the answer has the actors of this moment beside them.
        self._audit.note("admin", "ok", **current_caller.get().facts())
        return pb.StatusResponse(
            run_id=core.run_id,
            name=core.config.name,
            newest=version_to_pb(newest),
            inserted=core.memory.steps,
            sampled=control.sampled,
            opt_steps=control.opt_steps,
            replay_items=core.memory.drawable,
            replay_capacity=core.memory.capacity,
            return_mean=control.return_mean if control.episodes else None,
            samples_per_insert=core.ratio.samples_per_insert,
            actors=[
                _actor_status(row, newest.opt_steps, now, evaluates=self._evaluates(row))
                for row in core.registry.recent_rows(RECENT_SECONDS)
            ],
            cordoned=pb.ActorSelection(**core.cordons.cordoned.to_json()),
            drained=pb.ActorSelection(**core.cordons.drained.to_json()),
        )

    async def SetReplayRatio(  # noqa: N802
        self, request: pb.SetReplayRatioRequest, _: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.SetReplayRatioResponse:
        core = self._core
        wanted = request.samples_per_insert if request.HasField("samples_per_insert") else None
        before = core.ratio.samples_per_insert
        try:
            changes = {"replay": {"samples_per_insert": wanted}}
            validate(RunConfig, overlay(core.config.model_dump(mode="json"), changes))
        except ConfigError as error:
            raise RefusedError(str(error)) from error
        core.ratio.change(wanted, core.memory.steps, core.control.sampled)
        self._audit.note("admin", "ok", **current_caller.get().facts(), before=f"{before}", wanted=f"{wanted}")
        return pb.SetReplayRatioResponse(before=before)

    async def Cordon(  # noqa: N802
        self, request: pb.CordonRequest, _: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CordonResponse:
        return pb.CordonResponse(actors=self._change(self._core.cordons.cordon, request.actors))

    async def Drain(  # noqa: N802
        self, request: pb.DrainRequest, _: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DrainResponse:
        # An actor reports at least once a second, and the answer to its next report says ``stop``.
        return pb.DrainResponse(actors=self._change(self._core.cordons.drain, request.actors))

    async def Uncordon(  # noqa: N802
        self, request: pb.UncordonRequest, _: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.UncordonResponse:
        return pb.UncordonResponse(actors=self._change(self._core.cordons.uncordon, request.actors))

    def _evaluates(self, row: np.void) -> bool:
        """Whether the actor of this row of the table scores candidates."""
        at = self._core.registry.row_of(int(row["incarnation"]))
        return at is not None and self._core.evaluates(at)

    def _change(self, change: Callable[[Selection], None], asked: pb.ActorSelection) -> int:
        """Change the cordons for the selected actors; return how many of them hold an id now."""
        actors = _read_selection(asked, self._core.config.server.max_actors)
        if len(actors.hosts | self._core.cordons.cordoned.hosts) > MAX_HOSTS:
            raise RefusedError(f"hosts: expected at most {MAX_HOSTS} cordoned at one time, found more")
        change(actors)
        self._audit.note("admin", "ok", **current_caller.get().facts(), actors=str(actors))
        rows = self._core.registry.present_rows()
        return sum(actors.covers(int(row["actor_id"]), host_of(row)) for row in rows)


def _read_selection(asked: pb.ActorSelection, max_actors: int) -> Selection:
    """Check and read a selection."""
    for host in asked.hosts:
        check_text("hosts", host, MAX_HOST)
    if beyond := [actor_id for actor_id in asked.actor_ids if actor_id >= max_actors]:
        raise RefusedError(f"actor_ids: expected less than {max_actors} (server.max_actors), found {beyond[0]}")
    actors = Selection(frozenset(asked.actor_ids), frozenset(map(cut_host, asked.hosts)), asked.all)
    if not actors or "" in actors.hosts:
        raise RefusedError(f"actors: expected ids, names of hosts, or all, found {actors}")
    return actors


def _actor_status(row: np.void, newest_opt_steps: int, now: float, *, evaluates: bool) -> pb.ActorStatus:
    """One row of the actor table as a message of the protocol; ``now`` is on the host's monotonic clock."""
    values = plain_values(row)
    lag = max(0, newest_opt_steps - values["behaviour_opt_steps"])
    fields = {name: value for name, value in values.items() if name in _SAME} | {
        "state": _STATES[values["state"]],
        "lag_opt_steps": lag if values["items"] else None,
        "silent_seconds": max(0.0, now - values["last_seen"]),
        "last_return": values["last_return"] if values["episodes"] else None,
        "evaluates": evaluates,
    }
    return pb.ActorStatus(**fields)
