"""The ingest process: opens the shared memory, serves the wire, ends with its trainer.

Start: boot line on stdin → shared files → metrics → server → one JSON line on stdout with the ports.
End: ``stopping`` set and bell rung → actors told, their last items taken → exit 0; stdin closed → exit at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.config.server_config import ServerConfig
from common.errors import AddressError, CrossborderError
from common.process.child import say, say_error
from common.process.log import RateFilter, setup_logging
from common.settings import validate
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from learner.ingest.admin import AdminServicer
from learner.ingest.admission import Admission
from learner.ingest.audit import AuditLog
from learner.ingest.core import IngestBoot, IngestCore
from learner.ingest.descriptors import DescriptorWatch, connections_within, raise_descriptor_limit
from learner.ingest.gate import Gate, server_credentials
from learner.ingest.ingest_metrics import IngestCollector
from learner.ingest.limits import Limits
from learner.ingest.server_options import server_options
from learner.ingest.service import LearnerServicer
from learner.records.exposition import MetricsServer
from learner.shared.bell import Bell
from learner.shared.mapped import hold_until_exit

log = logging.getLogger(__name__)
TICK_SECONDS = 0.2
LOGGED_PER_SECOND, LOGGED_AT_ONCE = 10.0, 1000
"""Lines of the log: a fleet that joins at once is told in full, and a stranger cannot fill the disk."""


async def _start(
    server: grpc.aio.Server, boot: IngestBoot, core: IngestCore, servicer: LearnerServicer, audit: AuditLog
) -> int:
    """Serve everything that the configuration asks for; the port."""
    config = boot.config.server
    pb_grpc.add_LearnerServiceServicer_to_server(servicer, server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    name, admin = (pb.DESCRIPTOR.services_by_name[service].full_name for service in ("LearnerService", "AdminService"))
    if config.answers_admins:
        pb_grpc.add_AdminServiceServicer_to_server(AdminServicer(core, audit), server)
    if config.reflection:
        names = (name, *[admin] * config.answers_admins, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    try:
        if config.tls is None:
            port = server.add_insecure_port(boot.listen)
        else:
            port = server.add_secure_port(boot.listen, server_credentials(config.tls))
    except RuntimeError as error:
        raise AddressError(f"{boot.listen}: cannot listen there; is another learner running?") from error
    await server.start()
    for service in ("", name):
        await health_servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    return port


def _options_within(config: ServerConfig, descriptors: int) -> dict[str, int]:
    """GRPC's options; connections beyond the descriptors are closed instead of left waiting."""
    options, name = dict(server_options(config)), "grpc.max_allowed_incoming_connections"
    return {**options, name: connections_within(options[name], descriptors)}


async def serve(boot: IngestBoot) -> None:
    """Serve until the trainer says stop or is gone."""
    hold_until_exit(boot.directory)
    descriptors = raise_descriptor_limit()
    watch, loop = DescriptorWatch(descriptors), asyncio.get_running_loop()
    core = IngestCore(boot)
    bell = Bell(boot.bell_fds[1], -1)
    server_config, audit = boot.config.server, AuditLog(boot.directory.parent / "audit.jsonl")
    limits = Limits(server_config.limits, server_config.fleet, core.counts)
    gate, handshake_seconds = Gate.of(server_config), server_config.limits.handshake_seconds
    admission = Admission(gate, limits, core.counts, audit, handshake_seconds)
    servicer = LearnerServicer(core, bell, limits, audit)
    trainer_gone, ended = asyncio.Event(), asyncio.Event()

    def on_bell() -> None:
        servicer.on_bell()
        if core.control.stopping:
            ended.set()

    def on_stdin_closed() -> None:
        loop.remove_reader(sys.stdin.fileno())
        trainer_gone.set()
        ended.set()

    loop.add_reader(bell.read_fd, on_bell)
    loop.add_reader(sys.stdin.fileno(), on_stdin_closed)
    metrics = MetricsServer(IngestCollector(core), boot.config.metrics, boot.metrics_port)
    promised = server_config.model_copy(update={"max_message_bytes": core.promised.max_message_bytes})
    options = [*_options_within(promised, descriptors).items()]
    server = grpc.aio.server(interceptors=[admission], options=options)
    port = await _start(server, boot, core, servicer, audit)
    host, _, _ = boot.listen.rpartition(":")
    audit.note("start", "ok", address=f"{host}:{port}", run_id=boot.run_id)
    say({"address": f"{host}:{port}", "metrics_port": metrics.port})
    # The bell may have rung for a process before this one, which died of something else.
    while not (ended.is_set() or core.control.stopping):
        core.tick()
        admission.tick()
        watch.tick()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_SECONDS):
                await ended.wait()
    if not trainer_gone.is_set():
        await servicer.wind_up(boot.config.server.grace_seconds)
    core.tick()
    core.quarantine.write()
    await server.stop(grace=0.2)


def main() -> int:
    setup_logging(form="json")
    logging.getLogger().handlers[0].addFilter(RateFilter(LOGGED_PER_SECOND, LOGGED_AT_ONCE))
    try:
        asyncio.run(serve(validate(IngestBoot, json.loads(sys.stdin.readline()))))
    except CrossborderError as error:
        return say_error(error)
    except Exception:
        log.exception("ingest failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
