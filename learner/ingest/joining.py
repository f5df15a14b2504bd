"""``Join`` and ``Check``: decides which actors may enter, and makes the answers."""

from __future__ import annotations

import time
from typing import Final

from common.errors import ProtocolMismatchError, RefusedError
from common.wire.codec import schema_to_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION, StoppingError, SupersededError, version_to_pb
from common.wire.tokens import WITHOUT_NAME
from learner.ingest.cordons import CordonedError
from learner.ingest.core import IngestCore
from learner.ingest.registry import TooManyActorsError
from learner.shared.actor_table import cut_host

MAX_HOST, MAX_VERSION = 255, 32
"""The most characters, as the .proto says."""
_MARKUP: Final = frozenset("<>&\"'")


def require_open(core: IngestCore, request: pb.JoinRequest) -> None:
    """Check that no cordon keeps an actor out. An actor that is known may come back and hand over its rows.

    Raises:
        CordonedError: the actor may join when the cordon has ended.
    """
    cordoned = core.cordons.cordoned
    if not cordoned or any(map(core.registry.may_return, (request.incarnation, request.former_incarnation))):
        return
    wanted = request.wanted_id if request.HasField("wanted_id") else None
    if cordoned.covers(wanted, cut_host(request.host)):
        raise CordonedError("this actor or its host is cordoned; it may join after learner-server uncordon")


def lead(core: IngestCore, request: pb.JoinRequest) -> str | None:
    """Choose whether an actor should join another rank; None: it may stay.

    Only a new actor that accepts another address (``takes_elsewhere``) is led: the rows of a known actor belong to this
    learner, and a ``wanted_id`` is an id of this learner. Rank 0 alone has candidates to score.

    Raises:
        TooManyActorsError: the actor evaluates, and rank 0 does not listen yet.
        RefusedError: the actor evaluates, and does not go to rank 0.
    """
    leading, registry = core.leading, core.registry
    is_known = any(map(registry.may_return, (request.incarnation, request.former_incarnation)))
    if leading.n_ranks == 1 or is_known or core.control.stopping:
        return None
    if request.evaluates:
        return _lead_evaluating(core, request) if leading.rank else None
    if not request.takes_elsewhere or request.former_incarnation or request.HasField("wanted_id"):
        return None
    return leading.choose()


def _lead_evaluating(core: IngestCore, request: pb.JoinRequest) -> str:
    """The address of rank 0, for an actor that evaluates and has come to another rank."""
    address = core.leading.first_rank()
    if address is None:
        raise TooManyActorsError("rank 0, whose candidates actors score, does not listen yet")
    if not request.takes_elsewhere:
        raise RefusedError(
            f"evaluates: expected a join at rank 0, {address}, the only rank with candidates, found rank "
            f"{core.leading.rank}; give the actor that address, since this actor or its relay cannot be led there"
        )
    return address


def join(core: IngestCore, request: pb.JoinRequest, name: str = "") -> pb.JoinResponse:
    """Enter an actor, or lead it to another rank: then the answer holds only ``elsewhere``.

    Raises:
        ProtocolMismatchError, RefusedError, StoppingError, SupersededError, TooManyActorsError, CursorsFullError: the
            actor may not enter.
    """
    # 1. Nothing is entered before all checks have passed, so a refused actor leaves no trace.
    _require_wellformed(request)
    _require_newest(core, request)
    if elsewhere := lead(core, request):
        core.leading.note(elsewhere)
        return pb.JoinResponse(elsewhere=elsewhere)
    incarnation, former = request.incarnation, request.former_incarnation
    is_known = core.registry.row_of(incarnation) is not None or core.registry.row_of(former) is not None
    _require_admissible(core, request, name, is_known=is_known)
    core.writer.require_cursor(incarnation)
    # 2. The id and the row in the table of actors; an actor that was here before keeps its own.
    actor_id = core.registry.join(
        incarnation,
        request.host,
        request.pid,
        name=name,
        version=request.version,
        former=former,
        wanted=request.wanted_id if request.HasField("wanted_id") else None,
        closed=core.cordons.cordoned.actor_ids,
        evaluates=request.evaluates,
    )
    row = core.row_of(incarnation)
    core.note_kind(row, evaluates=request.evaluates)
    core.control.joins += 1
    if not is_known:
        core.leading.note(None)
    return _answer(core, request, actor_id, row)


def _answer(core: IngestCore, request: pb.JoinRequest, actor_id: int, row: int) -> pb.JoinResponse:
    """Answer an actor that has entered: it has this id, and this row of the table of actors."""
    # The seed comes from the row of the table, not from the id: an id passes on to another process, which would replay
    # the episodes of the process before it.
    seed = core.config.seed + row * core.config.envs_per_actor
    return pb.JoinResponse(
        actor_id=actor_id,
        run_id=core.run_id,
        seed=seed,
        epsilon=core.config.exploration.epsilon(actor_id * core.leading.n_ranks + core.leading.rank),
        schema=schema_to_pb(core.schema),
        config_json=core.config_json_of(actor_id),
        last_seq=core.last_seq(request.incarnation),
        newest=version_to_pb(core.newest(candidate=request.evaluates)),
        limits=core.batch_limits.present,
        epoch=core.epoch,
    )


def _require_wellformed(request: pb.JoinRequest) -> None:
    """Check a request by itself."""
    if request.protocol_version != PROTOCOL_VERSION:
        raise ProtocolMismatchError(
            f"protocol version: the learner speaks {PROTOCOL_VERSION}, the actor {request.protocol_version}; "
            "install the same crossborder release on both"
        )
    if not request.incarnation:
        raise RefusedError("incarnation: expected a random number, found 0")
    check_text("host", request.host, MAX_HOST)
    check_text("version", request.version, MAX_VERSION)


def _require_newest(core: IngestCore, request: pb.JoinRequest) -> None:
    """Check that the actor knows of no later learner of this run. Whether this learner ends, its mirror decides."""
    if request.run_id == core.run_id and request.epoch > core.epoch > 0:
        raise SupersededError(
            f"epoch: expected at most {core.epoch}, found {request.epoch}: another learner goes on with this run; try "
            "again later"
        )


def _require_admissible(core: IngestCore, request: pb.JoinRequest, name: str, *, is_known: bool) -> None:
    """Check that the run can give an actor the id and the kind of work that it asks for, and still takes it."""
    most = core.config.server.max_actors
    if request.HasField("wanted_id") and request.wanted_id >= most:
        raise RefusedError(f"wanted_id: expected less than {most} (server.max_actors), found {request.wanted_id}")
    if request.evaluates and core.scoring is None:
        raise RefusedError(
            "evaluates: this learner asks no actor to score models (evaluator.process: actor, trainer.eval_interval)"
        )
    listed = core.config.server.evaluating_names
    if request.evaluates and name not in (WITHOUT_NAME if listed is None else listed):
        raise RefusedError(
            f"evaluates: expected a token of {' or '.join(listed or ()) or 'nobody'} (server.evaluating_names), "
            f"found one of '{name}'; a score decides which policy is the best, so the learner's configuration names "
            "those who may score"
        )
    if core.control.stopping and not is_known:  # Actors that are known may still hand over their rows.
        raise StoppingError("the learner is shutting down")


def check(core: IngestCore, request: pb.CheckRequest) -> pb.CheckResponse:
    """The answer to a host that does not act yet; no actor is entered or counted."""
    wanted = request.wanted_id if request.HasField("wanted_id") else None
    return pb.CheckResponse(
        protocol_version=PROTOCOL_VERSION,
        unix_seconds=time.time(),
        actors=len(core.registry.present_rows()),
        max_actors=core.config.server.max_actors,
        schema=schema_to_pb(core.schema),
        config_json=core.config_json_of(wanted),
        limits=core.batch_limits.present,
    )


def check_text(what: str, text: str, longest: int) -> None:
    """Check that an actor's text can be logged, shown on terminals and put into pages.

    Raises:
        RefusedError: the text cannot be shown.
    """
    if len(text) > longest:
        raise RefusedError(f"{what}: expected at most {longest} characters, found {len(text)}")
    if strange := {character for character in text if character in _MARKUP or not character.isprintable()}:
        raise RefusedError(f"{what}: expected printable characters and no markup, found {min(strange)!a}")
