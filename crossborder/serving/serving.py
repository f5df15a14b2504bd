"""An acting service put together: its sessions, its doors, its metrics, and the order in which it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from common.errors import PluginError
from common.wire.address import split_address
from common.wire.pb import acting_pb2, acting_pb2_grpc
from common.wire.waiting import WaitingBytes
from crossborder.serving.acting_service import HEALTH_PATH, STOP_SECONDS, ActingService, ActingServicer
from crossborder.serving.figures import Figures
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.serving_metrics import ServingCollector
from crossborder.serving.sessions import Sessions
from crossborder.serving.status_page import StatusPage
from learner.ingest.admission import Admission
from learner.ingest.audit import AuditLog
from learner.ingest.gate import Gate, KnownTokens, Role
from learner.ingest.limits import CallLimits
from learner.ingest.refusals import IngestCounts
from learner.ingest.server_options import listen, raise_descriptor_limit, server_options, start
from learner.records.exposition import MetricsServer

if TYPE_CHECKING:
    from crossborder.serving.websocket_door import WebSocketDoor

NAME: Final = acting_pb2.DESCRIPTOR.services_by_name["ActingService"].full_name
TICK_SECONDS: Final = 0.2
FAREWELL_SECONDS: Final = 1.0
"""The time in which clients whose connection has just broken can come back, and are told that the run is over."""


@dataclass(frozen=True)
class Places:
    """Where a service listens: HOST:PORT for gRPC and for WebSocket, and the port of its metrics; None: nowhere."""

    address: str
    websocket: str | None
    metrics_port: int | None


async def serve(
    policies: Sequence[ServedPolicy],
    config: ServingConfig,
    ends: Callable[[], bool],
    on_listening: Callable[[Places], None],
    is_run_over: Callable[[], bool] = lambda: False,
) -> None:
    """Serve clients.

    Args:
        policies: at least one; all of them have other names. Clients who name none get the first.
        config: of the service.
        ends: whether to shut down; called a few times a second.
        on_listening: called once, when clients are served.
        is_run_over: whether the run for which the service acts has reached its end; asked when the service ends.

    Raises:
        AddressError: an address is taken.
        ConfigError: a file of ``config`` cannot be read.
        PluginError: the policy failed.
        CrossborderError: the steps could not be handed over.
    """
    figures, counts = Figures(), IngestCounts()
    counts.over_limit["strangers"] = 0  # A limit of ``WebSocketDoor`` alone.
    sessions = Sessions(policies, config, figures)
    server_config = config.as_server()
    limits = CallLimits(server_config.fleet, counts, may_share_address=True)
    audit, seconds = AuditLog(config.audit_file), server_config.handshake_seconds
    service = ActingService(config, sessions, figures, limits, audit, seconds)
    server, admission, address = _open_grpc_door(service, counts)
    page = StatusPage(sessions)
    metrics = _serve_metrics(ServingCollector(sessions, figures, counts, config.tls), page, config)
    async with AsyncExitStack() as stack:
        stack.callback(metrics.close)
        working = await stack.enter_async_context(_working(work for policy in policies for work in policy.works()))
        await stack.enter_async_context(_started(server))
        ticks = [sessions.tick, admission.tick, page.tick, *(policy.batches.tick for policy in policies)]
        websocket = None
        if config.websocket is not None:
            door = _make_websocket_door(service, admission)
            websocket = await stack.enter_async_context(door.opened(config.websocket))
            ticks.append(door.tick)
        _leave_old_objects(stack)
        page.tick()  # Its health is good before anybody is told where it listens.
        on_listening(Places(address, websocket, metrics.port))
        failed = await _tick_until(ends, ticks, working)
        await _say_farewell(sessions, is_run_over=is_run_over())
        for task in failed:
            task.result()


def _leave_old_objects(stack: AsyncExitStack) -> None:
    """Collect garbage among new objects only: to look through all that torch has made takes 0.05 s."""
    gc.collect()
    gc.freeze()
    stack.callback(gc.unfreeze)


async def _tick_until(
    ends: Callable[[], bool], ticks: Sequence[Callable[[], None]], working: set[asyncio.Task[NoReturn]]
) -> set[asyncio.Task[NoReturn]]:
    """Call the ticks a few times a second, until it is time to shut down or a work has failed; return those works."""
    failed = set[asyncio.Task[NoReturn]]()
    while not (ends() or failed):
        for tick in ticks:
            tick()
        failed, _ = await asyncio.wait(working, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    return failed


async def _say_farewell(sessions: Sessions, *, is_run_over: bool) -> None:
    sessions.stop(is_run_over=is_run_over)
    if is_run_over:
        await asyncio.sleep(FAREWELL_SECONDS)


def _open_grpc_door(service: ActingService, counts: IngestCounts) -> tuple[grpc.aio.Server, Admission, str]:
    """Listen for clients by gRPC. The server answers them once it is started.

    Returns:
        The server, who admits its callers, and HOST:PORT.
    """
    config, gate = service.config.as_server(), _make_gate(service.config)
    message_bytes = service.config.max_message_bytes
    waiting = WaitingBytes(config.waiting_bytes(message_bytes), "the sessions of this service")
    admission = Admission(
        gate, service.limits, counts, service.audit, handshake_seconds=service.handshake_seconds, waiting=waiting
    )
    options = server_options(config, message_bytes, raise_descriptor_limit())
    server = grpc.aio.server(interceptors=[admission], options=options)
    acting_pb2_grpc.add_ActingServiceServicer_to_server(ActingServicer(service), server)
    address, gate.port = listen(server, [config.listen], config.tls)
    waiting.serve_on(gate.port)
    return server, admission, address


def _make_websocket_door(service: ActingService, admission: Admission) -> WebSocketDoor:
    """The door, which a service has only if it asks for it: it needs packages that others need not have."""
    try:
        from crossborder.serving.websocket_door import WebSocketDoor  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise PluginError(f"websocket: {error}; pip install 'crossborder[serving]'") from error
    return WebSocketDoor(service, _make_gate(service.config), admission)  # A gate of its own: it knows one port.


def _make_gate(config: ServingConfig) -> Gate:
    tokens = config.tokens()
    known = {Role.CLIENT: KnownTokens(tokens)} if tokens else {}
    return Gate(known, is_open=config.insecure)


def _serve_metrics(collector: ServingCollector, page: StatusPage, config: ServingConfig) -> MetricsServer:
    host, port = split_address(config.metrics) if config.metrics is not None else ("127.0.0.1", None)
    return MetricsServer(collector, host, port, pages={"/": page.show, HEALTH_PATH: page.tell_health})


@asynccontextmanager
async def _working(works: Iterable[Coroutine[Any, Any, NoReturn]]) -> AsyncIterator[set[asyncio.Task[NoReturn]]]:
    """A context in which tasks do these works, each of which ends only with an error."""
    tasks = {asyncio.create_task(work) for work in works}
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@asynccontextmanager
async def _started(server: grpc.aio.Server) -> AsyncIterator[None]:
    """A context in which the server answers calls, and says by its health that it does."""
    health_servicer = await start(server, NAME)
    try:
        yield
    finally:
        await health_servicer.enter_graceful_shutdown()
        await server.stop(STOP_SECONDS)
