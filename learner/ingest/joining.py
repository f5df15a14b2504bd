"""``Join`` and ``Check``: decides which actors may enter, and makes the answers."""

from __future__ import annotations

import time
from typing import Final

from common.errors import ProtocolMismatchError, RefusedError
from common.wire.codec import schema_to_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION, StoppingError, version_to_pb
from learner.ingest.core import IngestCore

MAX_HOST, MAX_VERSION = 255, 32
"""The most characters, as the .proto says."""
_MARKUP: Final = frozenset("<>&\"'")


def join(core: IngestCore, request: pb.JoinRequest, name: str = "") -> pb.JoinResponse:
    """Enter an actor.

    Args:
        core: where it enters.
        request: describes the actor.
        name: of the actor's token; empty without a token.

    Raises:
        ProtocolMismatchError, RefusedError, StoppingError, TooManyActorsError, CursorsFullError: it may not enter.
    """
    if request.protocol_version != PROTOCOL_VERSION:
        raise ProtocolMismatchError(
            f"protocol version: the learner speaks {PROTOCOL_VERSION}, the actor {request.protocol_version}; "
            "install the same crossborder release on both"
        )
    incarnation, former = request.incarnation, request.former_incarnation
    if not incarnation:
        raise RefusedError("incarnation: expected a random number, found 0")
    _check_text("host", request.host, MAX_HOST)
    _check_text("version", request.version, MAX_VERSION)
    if request.evaluates and core.scoring is None:
        raise RefusedError("evaluates: this learner asks no actor to score models (evaluator.process: actor)")
    is_known = core.registry.row_of(incarnation) is not None or core.registry.row_of(former) is not None
    if core.control.stopping and not is_known:  # Actors that are known may still hand over their rows.
        raise StoppingError("the learner is shutting down")
    core.writer.require_cursor(incarnation)
    actor_id = core.registry.join(
        incarnation, request.host, request.pid, name=name, version=request.version, former=former
    )
    row = core.row_of(incarnation)
    core.note_kind(row, evaluates=request.evaluates)
    # The seed comes from the row of the table, not from the id: an id passes on to another process, which would replay
    # the episodes of the process before it.
    seed = core.config.seed + row * core.config.envs_per_actor
    core.control.joins += 1
    return pb.JoinResponse(
        actor_id=actor_id,
        run_id=core.run_id,
        seed=seed,
        epsilon=core.config.exploration.epsilon(actor_id),
        schema=schema_to_pb(core.schema),
        config_json=core.own_config_json.get(actor_id, core.actor_config_json),
        last_seq=core.writer.last_seq(incarnation),
        newest=version_to_pb(core.newest(candidate=request.evaluates)),
        limits=core.batch_limits.present,
    )


def check(core: IngestCore) -> pb.CheckResponse:
    """The answer to a host that does not act yet; no actor is entered or counted."""
    return pb.CheckResponse(
        protocol_version=PROTOCOL_VERSION,
        unix_seconds=time.time(),
        actors=len(core.registry.present_rows()),
        max_actors=core.config.server.max_actors,
        schema=schema_to_pb(core.schema),
        config_json=core.actor_config_json,
        limits=core.batch_limits.present,
    )


def _check_text(what: str, text: str, longest: int) -> None:
    """Check that an actor's text can be logged, shown on terminals and put into pages.

    Raises:
        RefusedError: the text cannot be shown.
    """
    if len(text) > longest:
        raise RefusedError(f"{what}: expected at most {longest} characters, found {len(text)}")
    if strange := {character for character in text if character in _MARKUP or not character.isprintable()}:
        raise RefusedError(f"{what}: expected printable characters and no markup, found {min(strange)!a}")
