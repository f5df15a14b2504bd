from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from common.config.server_config import ServerConfig
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from learner.ingest.server_options import server_options
from tests.conftest import free_port as find_free_port


class ScriptedLearner(pb_grpc.LearnerServiceServicer):
    """Answers ``Join`` always the same way, and ``GetModel`` as its ``answers`` say, the last one again and again.

    It acknowledges all that is pushed, so an actor that ends need not wait for a better connection.
    """

    def __init__(self, joined: pb.JoinResponse, answers: list[list[pb.GetModelResponse]]) -> None:
        self.joined, self.answers = joined, answers
        self.had: list[pb.ModelVersion] = []
        self.versions: list[pb.ModelVersion] = []

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        return self.joined

    def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetModelResponse]:
        self.had.append(request.have)
        self.versions.append(request.version)
        yield from self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def PushItems(  # noqa: N802
        self, request_iterator: Iterator[pb.PushItemsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PushItemsResponse]:
        for request in request_iterator:
            yield pb.PushItemsResponse(acked_seq=request.seq)

    def Check(self, request: pb.CheckRequest, context: grpc.ServicerContext) -> pb.CheckResponse:  # noqa: N802
        return pb.CheckResponse()


Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a scripted learner over real gRPC; its port."""
    servers: list[grpc.Server] = []

    def _serve(learner: ScriptedLearner, port: int = 0) -> int:
        server = grpc.server(ThreadPoolExecutor(2), options=server_options(ServerConfig(), 1 << 20))
        pb_grpc.add_LearnerServiceServicer_to_server(learner, server)
        taken = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        servers.append(server)
        return taken

    yield _serve
    for server in servers:
        server.stop(None).wait()


@pytest.fixture
def free_port() -> int:
    """A port where nobody listens, also a little later."""
    return find_free_port()
