"""The ingest process: opens the shared memory, serves gRPC, ends with its trainer.

Start: boot line on stdin → shared files → metrics → server → one JSON line on stdout with the ports.
End: the trainer sets ``stopping`` and rings the bell → ingest tells the actors to stop and stores their last rows →
exit 0. If the trainer closes stdin, ingest exits at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from common.cores import bind
from common.process.child import say, serve_parent
from common.process.log import RateFilter
from common.settings import validate
from common.shared.mapped import hold_until_exit
from common.wire.endpoints import listen_at_first
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.waiting import WaitingBytes
from learner.ingest.admin import AdminServicer
from learner.ingest.admission import Admission
from learner.ingest.audit import AuditLog
from learner.ingest.core import IngestBoot, IngestCore
from learner.ingest.gate import Gate
from learner.ingest.ingest_metrics import IngestCollector
from learner.ingest.limits import CallLimits
from learner.ingest.server_options import DescriptorWatch, listen, raise_descriptor_limit, server_options, start
from learner.ingest.service import LearnerServicer
from learner.records.exposition import MetricsServer
from learner.shared.bell import Bell
from learner.shared.durable import naming_write_errors

CALLS_SECONDS = 1.0
TICK_SECONDS = 0.2
LOGGED_PER_SECOND, LOGGED_AT_ONCE = 10.0, 1000
"""Lines of the log: a fleet that joins at once is logged in full, and a stranger cannot fill the disk."""


class _TrainerEvents:
    """The trainer's signals while ingest serves: the bell, the stop and the trainer's own end.

    The trainer writes ``stopping`` into the control block before it rings the bell, so the stop is seen at the ring. A
    trainer that dies, even by SIGKILL, closes the pipe that is ingest's stdin.
    """

    def __init__(self, core: IngestCore, bell: Bell, servicer: LearnerServicer) -> None:
        self._core, self._servicer = core, servicer
        self.trainer_is_gone = False
        self._ended, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(bell.read_fd, self._on_bell)
        loop.add_reader(sys.stdin.fileno(), self._on_stdin_closed)

    def _on_bell(self) -> None:
        self._servicer.on_bell()
        if self._core.control.stopping:
            self._ended.set()

    def _on_stdin_closed(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self.trainer_is_gone = True
        self._ended.set()

    def has_ended(self) -> bool:
        """Whether ingest must end; the bell may have rung for an ingest process before this one."""
        return self._ended.is_set() or bool(self._core.control.stopping)

    async def wait(self, seconds: float) -> None:
        """Wait until ingest must end, but at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()


async def serve(boot: IngestBoot) -> None:
    """Serve until the trainer says stop or is gone."""
    hold_until_exit(boot.directory)
    descriptors = raise_descriptor_limit()
    config, audit = boot.config.server, AuditLog(boot.directory.parent / "audit.jsonl")
    with naming_write_errors(boot.directory):
        core = IngestCore(boot)
    limits = CallLimits(config.fleet, core.counts, may_share_address=config.may_share_address)
    bell = Bell(boot.bell_fds[1], -1)
    servicer = LearnerServicer(core, bell, limits, audit)
    # There is room for the largest batches that the run has ever allowed.
    message_bytes = core.batch_limits.largest.max_message_bytes
    waiting = WaitingBytes(config.waiting_bytes(message_bytes), "the actors of this learner")
    seconds = config.handshake_seconds
    gate = Gate.of(config, serves_again=boot.serves_again)
    admission = Admission(gate, limits, core.counts, audit, handshake_seconds=seconds, waiting=waiting)
    events = _TrainerEvents(core, bell, servicer)
    collector, host, tls = IngestCollector(core), boot.config.metrics.host, boot.config.metrics_tls
    metrics = listen_at_first(boot.metrics_ports, partial(MetricsServer, collector, host, tls=tls))
    server = grpc.aio.server(interceptors=[admission], options=server_options(config, message_bytes, descriptors))
    address, port = await _start(server, boot, servicer, AdminServicer(core, audit), gate)
    waiting.serve_on(port)
    audit.note("start", "ok", address=address, run_id=boot.run_id)
    say({"address": address, "metrics_port": metrics.port})
    watch = DescriptorWatch(descriptors)

    def tick() -> None:
        core.tick()
        collector.tick()
        admission.tick()
        watch.tick()

    while not events.has_ended():
        tick()
        await events.wait(TICK_SECONDS)
    if not events.trainer_is_gone:
        winding_up = asyncio.create_task(servicer.wind_up(config.grace_seconds))
        while not winding_up.done():  # The trainer sees by the ticks that this process lives.
            tick()
            await asyncio.wait([winding_up], timeout=TICK_SECONDS)
        await winding_up
    core.tick()
    if core.pool is not None:
        core.pool.save()
    core.quarantine.write()
    # Open calls would keep the ingest process of the next trainer waiting for this directory.
    await server.stop(grace=None if events.trainer_is_gone else 0.2)
    # Calls whose connection broke silently end last. asyncio would break them off, and gRPC would log a traceback.
    if calls := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(calls, timeout=CALLS_SECONDS)


async def _start(
    server: grpc.aio.Server,
    boot: IngestBoot,
    servicer: LearnerServicer,
    admin_servicer: AdminServicer,
    gate: Gate,
) -> tuple[str, int]:
    """Serve everything that the configuration asks for; return HOST:PORT and the port alone."""
    config = boot.config.server
    pb_grpc.add_LearnerServiceServicer_to_server(servicer, server)
    name, admin = (pb.DESCRIPTOR.services_by_name[service].full_name for service in ("LearnerService", "AdminService"))
    if config.answers_admins:
        pb_grpc.add_AdminServiceServicer_to_server(admin_servicer, server)
        names = (name, admin, health.SERVICE_NAME, reflection.SERVICE_NAME)  # The gate asks for an admin's token.
        reflection.enable_server_reflection(names, server)

    address, gate.port = listen(server, boot.addresses, config.tls)
    await start(server, name)
    return address, gate.port


def _serve_trainer(line: dict[str, Any]) -> None:
    logging.getLogger().handlers[0].addFilter(RateFilter(LOGGED_PER_SECOND, LOGGED_AT_ONCE))
    boot = validate(IngestBoot, line)
    if boot.config.trainer.cores is not None:
        bind(boot.config.trainer.cores)
    asyncio.run(serve(boot))


def main() -> int:
    return serve_parent(_serve_trainer, "ingest failed")


if __name__ == "__main__":
    sys.exit(main())
