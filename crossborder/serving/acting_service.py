"""What all doors of an acting service share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from common.wire.acting_payloads import VERSION
from common.wire.pb import acting_pb2 as pb
from crossborder.serving.figures import Figures
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.sessions import Sessions
from learner.ingest.audit import AuditLog
from learner.ingest.limits import CallLimits

HEALTH_PATH: Final = "/healthz"
STOP_SECONDS: Final = 5.0
"""The most time in which clients are told that the service ends: enough on a busy host, and over once all are told."""


@dataclass(frozen=True)
class ActingService:
    """An acting service behind its doors."""

    config: ServingConfig
    sessions: Sessions
    figures: Figures
    limits: CallLimits
    audit: AuditLog
    handshake_seconds: float

    def describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        """All that a client must know.

        Raises:
            BadMessageError: there is no policy of this name.
        """
        policy = self.sessions.policy(request.policy)
        observation, action = policy.description.leaves()
        config = self.config
        limits = pb.ActingLimits(
            max_lanes=config.max_lanes,
            max_sessions=config.max_sessions,
            max_message_bytes=config.max_message_bytes,
            resume_seconds=config.resume_seconds,
            silence_seconds=config.silence_seconds,
        )
        return pb.DescribeResponse(
            protocol_version=VERSION,
            observation=observation,
            action=action,
            limits=limits,
            explores=config.explore,
            version=policy.player.opt_steps,
            policies=filter(None, self.sessions.policies),
        )
