"""Each alert is made to fire by its fault, on a real Prometheus and Alertmanager, and reaches a webhook.

Windows and thresholds are seconds where the shipped rules have minutes and hours; nothing else is changed.
``test_alerts`` has the faults of an actor that sends what is refused and goes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from common.errors import AuthenticationError, DivergedError
from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import LearnerServer
from tests.conftest import Command, MakeConfig, endpoints, free_port, kill, merged, wait_for
from tests.dashboards.stack import needs, on_call
from tests.dashboards.test_alerts import NAMES, reach
from tests.disks import mounted
from tests.e2e.test_by_hand import CALM, ENDLESS
from tests.learner.ingest.by_hand import SECONDS, Client, Talk
from tests.security.conftest import Secured, join, write

Start = Callable[..., Command]
WriteConfig = Callable[..., Path]
SOONER = {"[5m]": "[60s]", "[10m]": "[60s]", "> 3600": "> 3", "> 60": "> 2"}
"""Windows hold a fault and the figures before it, also where half a minute of a busy machine lies between them."""
SHOWN_ELSEWHERE = {
    "ActionsLate",
    "BatchesRefused",
    "CertificateExpires",
    "ClientsRefused",
    "LearningOffPolicy",
    "NewerPolicyRefused",
}
UNATTENDED = ("LearnerStalled", "NoActors", "ReplayStarved", "CheckpointTooOld")
SHOWN = {*UNATTENDED, "DiskNearlyFull", "LearnerDown"} | {
    "PolicyLagHigh",
    "ActorLost",
    "EnvironmentsFail",
    "CallsUnauthenticated",
    "NonFiniteLoss",
    "CheckpointsFail",
    "MirrorBehind",
}

pytestmark = needs("prometheus", "prometheus-alertmanager")


def test_no_alert_is_left_out() -> None:
    assert set(NAMES) == SHOWN_ELSEWHERE | SHOWN


def test_a_learner_to_which_nobody_comes_on_a_disk_that_fills_and_that_is_killed(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk") as disk:
        run_dir = disk.path / "run"
        config = write_config(trainer=ENDLESS, run_dir=str(run_dir), replay={"capacity": 10_000})
        server = start("learner-server", "--config", str(config))
        wait_for((run_dir / "endpoints.json").exists, "the learner is up")
        half = shutil.disk_usage(disk.path).free // 2
        with on_call(tmp_path, endpoints(run_dir), {**SOONER, "[5m]": "[10s]", "5e9": str(half)}) as (_, alerts):
            reach(alerts, *UNATTENDED)
            disk.fill()
            reach(alerts, "DiskNearlyFull")
            kill(server.process.pid)
            assert reach(alerts, "LearnerDown")["LearnerDown"]["severity"] == "critical"


def test_an_actor_that_rebuilds_its_environment_acts_with_an_old_model_and_is_lost(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    with LearnerServer(make_config(server={"grace_seconds": 0.5, "lost_seconds": 6.0})) as server:
        client, acting = Client(server), pb.ModelVersion(incarnation=1, opt_steps=0)
        with on_call(tmp_path, endpoints(tmp_path / "run"), SOONER) as (asked, alerts):
            old = time.monotonic() + 3.0
            wait_for(lambda: time.monotonic() > old, "the model is old")
            wait_for(lambda: asked.values("crossborder_env_rebuilds_total") == [0], "the counter is seen")
            client.join()  # It must not be silent as long as Prometheus needs to come up.
            for _ in client.stub.GetModel(pb.GetModelRequest(), timeout=SECONDS):
                pass
            talk = Talk(client.stub)
            rebuilt = pb.Report(env_rebuilds=1)

            def is_seen(batches: int) -> bool:
                talk.say(client.batch(0, rows=0, payload=b"", report=rebuilt))  # It is not silent.
                return asked.values("crossborder_batches_total") == [batches]

            for seq in range(1, 4):
                talk.say(client.batch(seq, behaviour=acting, report=rebuilt))
                wait_for(partial(is_seen, seq), "it is seen")
            client.channel.close()
            assert reach(alerts, "EnvironmentsFail", "PolicyLagHigh", "ActorLost")


def test_a_call_without_a_valid_token(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    with secured.server as server, on_call(tmp_path, endpoints(server.run.dir.path), SOONER) as (asked, alerts):
        stranger = secured.trust(token_file=write(tmp_path / "wrong.token", "x" * 40))
        wait_for(lambda: asked.values("crossborder_unauthenticated_calls_total") == [0], "the counter is seen")
        with pytest.raises(AuthenticationError):
            join(secured.address, stranger)
        assert reach(alerts, "CallsUnauthenticated")


def test_a_run_whose_mirror_cannot_be_reached_and_whose_checkpoints_cannot_be_written(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    mirror, checkpoints = tmp_path / "mirror", tmp_path / "run" / "checkpoints"
    changes = {
        "storage": {"mirror": f"file://{mirror}", "mirror_seconds": 0.5},
        "trainer": {"checkpoint_seconds": 0.2},
    }
    start("learner-server", "--config", str(write_config(**merged(CALM, changes))), "--local-actors", "1")
    wait_for((tmp_path / "run" / "endpoints.json").exists, "the learner is up")
    with on_call(tmp_path, endpoints(tmp_path / "run"), {**SOONER, "> 60": "> 5"}) as (asked, alerts):
        for what in ("mirror", "checkpoint"):
            counter = f"crossborder_{what}_failures_total"
            wait_for(lambda counter=counter: asked.values(counter) == [0], "it is seen")  # type: ignore[misc]
        mirror.rename(tmp_path / "mirrored")
        mirror.touch()
        assert reach(alerts, "MirrorBehind")
        checkpoints.rename(tmp_path / "kept")
        checkpoints.touch()
        assert reach(alerts, "CheckpointsFail")


def test_a_run_that_diverges_and_is_started_again(start: Start, write_config: WriteConfig, tmp_path: Path) -> None:
    run_dir, ill = tmp_path / "run", tmp_path / "ill"
    agent = {"target": "tests.parts:DivergingAgent", "params": {"ill": str(ill)}}
    trainer = {"checkpoint_seconds": 0.1, "record_interval": 10}
    metrics = {"listen": f"127.0.0.1:{free_port(2)}"}
    config = write_config(**merged(CALM, {"agent": agent, "trainer": trainer, "metrics": metrics}))
    server = start("learner-server", "--config", str(config), "--local-actors", "1")
    wait_for((run_dir / "endpoints.json").exists, "the learner is up")
    with on_call(tmp_path, endpoints(run_dir), SOONER) as (asked, alerts):
        wait_for(lambda: any((run_dir / "checkpoints").glob("[0-9]*")), "a checkpoint")
        wait_for(lambda: asked.values("crossborder_divergences_total") == [0], "the counter is seen")
        ill.touch()
        assert server.wait() == DivergedError.exit_code, server.output()
        ill.unlink()
        start("learner-server", "--resume", str(run_dir), "--local-actors", "1")
        assert reach(alerts, "NonFiniteLoss")
