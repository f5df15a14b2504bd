"""The .proto alone is enough: an actor written in another language from it works with a real learner."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import pytest

from common.config.run_config import RunConfig, load_config
from common.data import Items
from crossborder.certificates.authority import make_files
from learner.storage.checkpoint import Checkpoints
from tests.conftest import PATIENCE, ROOT, Command, free_port, kill, wait_for
from tests.e2e.test_counting import train_in_thread
from tests.learner.loop.test_run import replay_of
from tests.learner.storage.test_checkpoint import CONFIG, OBS, dqn
from tests.stored import stored_rows

NODE = shutil.which("node")
HERE = ROOT / "examples" / "node"
JUMPING: Final = """
    const { now } = Date;
    process.on("SIGUSR2", () => (Date.now = () => now() + 3_600_000));
"""
"""Has the wall clock jump by an hour when the actor gets a signal."""
pytestmark = pytest.mark.skipif(
    not (NODE and (HERE / "node_modules").is_dir()), reason="needs node and `make node-actor`"
)
Start = Callable[..., "subprocess.Popen[str]"]


def cartpole(run_dir: Path, *overrides: str) -> RunConfig:
    free = "server.listen=127.0.0.1:0", "metrics.listen=127.0.0.1:0", f"run_dir={run_dir}"
    few = "agent.params.units=[32, 32]", "agent.params.explorer={start: 1.0, final_step: 500}"
    return load_config(ROOT / "configs" / "cartpole.yaml", (*free, *few, *overrides))


@pytest.fixture
def node() -> Iterator[Start]:
    """Starts the actor; one that still runs at the end of the test is killed."""
    actors: list[subprocess.Popen[str]] = []

    def _start(address: str, *trust: Path) -> subprocess.Popen[str]:
        command = [str(NODE), "--import", f"data:text/javascript,{JUMPING}", "cartpole.mjs", address, *map(str, trust)]
        actors.append(subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return actors[-1]

    yield _start
    for actor in actors:
        actor.kill()
        actor.communicate()


def summary(actor: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says when it has ended well."""
    out, err = actor.communicate(timeout=2 * PATIENCE)  # The learner may train meanwhile, up to its target score.
    assert actor.returncode == 0, err
    said: dict[str, Any] = json.loads(out)
    return said


def assert_whole_episodes(rows: Items) -> None:
    """In the lane each row follows from the one before by CartPole's rules: none is lost, twice, or out of order."""
    first, final = rows["first"], rows["final"]
    assert first[0]
    assert (first[1:] == final[:-1]).all(), "an episode begins after each final row, and nowhere else"
    env = gymnasium.make("CartPole-v1").unwrapped
    for i in np.flatnonzero(~final[:-1])[:2000]:
        env.reset()
        env.state = rows["obs"][i].astype(float)  # type: ignore[attr-defined]
        obs, _, terminated, _, _ = env.step(int(rows["action"][i]))
        np.testing.assert_allclose(rows["obs"][i + 1], obs, atol=1e-5)
        assert rows["terminated"][i] == terminated


def secured(directory: Path, *, is_mutual: bool) -> tuple[str, ...]:
    """Make certificates and tokens; the settings of a learner with them."""
    make_files(directory, ["localhost"], 1, renew=False)
    client_ca = f", client_ca: {directory}/ca.pem" if is_mutual else ""
    return (
        f"server.tls={{certificate: {directory}/server.pem, key: {directory}/server.key{client_ca}}}",
        f"server.actor_token_file={directory}/actor.token",
        "server.listen=localhost:0",
    )


@pytest.mark.parametrize(
    ("is_mutual", "trust"),
    [(False, ["ca.pem", "actor.token"]), (True, ["ca.pem", "actor.token", "actor.pem", "actor.key"])],
    ids=["tls", "mutual tls"],
)
def test_what_it_pushes_over_tls_with_a_token_trains_the_agent_and_it_says_goodbye(
    tmp_path: Path, node: Start, trust: list[str], *, is_mutual: bool
) -> None:
    target = "trainer.target_score=60", "trainer.eval_interval=250", "evaluator.episodes=5"
    config = cartpole(tmp_path / "run", *secured(tmp_path, is_mutual=is_mutual), *target)
    with train_in_thread(config, local_actors=0) as (server, results):
        said = summary(node(server.ingest.address, *(tmp_path / name for name in trust)))
    (result,) = results
    assert result.best_score >= 60
    assert said["unacked"] == 0
    assert said["env_steps"] == result.samples_total == sum(stat.env_steps for stat in result.actors)


def test_nothing_is_lost_or_stored_twice_when_ingest_is_killed(tmp_path: Path, node: Start) -> None:
    endless = "trainer.max_opts=1000000", "trainer.target_score=null", "replay.capacity=1000000"
    free = "replay.samples_per_insert=null", "trainer.warmup_period=900000"  # Nothing is learnt, nobody held back.
    with train_in_thread(cartpole(tmp_path / "run", *endless, *free), local_actors=0) as (server, results):
        actor = node(server.ingest.address)
        for kills in (1, 2):
            before = server.buffer.inserted
            wait_for(lambda before=before: server.buffer.inserted > before + 500, "rows flow")  # type: ignore[misc]
            kill(server.ingest.pid)
            wait_for(lambda kills=kills: server.ingest.restarts == kills, "the restart")  # type: ignore[misc]
        goal = server.buffer.inserted + 500
        wait_for(lambda: server.buffer.inserted > goal, "rows flow again")
        server.learner.request_stop()
        said = summary(actor)
    (result,) = results
    assert said["reconnects"] == 2
    assert said["env_steps"] == result.samples_total
    assert_whole_episodes(stored_rows(result.run_dir))


def test_columns_that_it_does_not_make_are_named(tmp_path: Path, node: Start) -> None:
    priorities = "push.initial_priorities=true", "replay.prioritized={}", "replay.view.params.n=1"
    with train_in_thread(cartpole(tmp_path / "run", *priorities), local_actors=0) as (server, _):
        actor = node(server.ingest.address)
        _, err = actor.communicate(timeout=PATIENCE)
        assert "column priority: expected" in err
        assert actor.returncode == 1


@pytest.fixture
def serve(start: Callable[..., Command]) -> Callable[..., Command]:
    """Starts a learner at an address; it goes on without end, and does not learn meanwhile."""

    def _serve(address: str, *words: str) -> Command:
        free = (
            "metrics.listen=127.0.0.1:0",
            "trainer.target_score=null",
            "trainer.max_opts=1000000",
            "trainer.warmup_period=90000",
        )
        settings = [word for setting in free for word in ("--set", setting)]
        return start("learner-server", *words, "--listen", address, *settings)

    return _serve


def has_stored(run_dir: Path, steps: int) -> bool:
    return (run_dir / "shared" / "replay").exists() and replay_of(run_dir).steps > steps


def end(server: Command) -> list[int]:
    """End a learner in order; return the steps of each actor, as it reported them."""
    server.process.send_signal(signal.SIGTERM)
    server.wait()
    return [int(steps) for steps in re.findall(r"^\d+, (\d+), [\d.]+, [\d.]+$", server.output(), re.MULTILINE)]


def test_it_starts_over_with_its_id_where_another_run_answers(
    tmp_path: Path, serve: Callable[..., Command], node: Start
) -> None:
    address = f"127.0.0.1:{free_port()}"
    actor = node(address)
    for name in ("one", "other"):
        run_dir = tmp_path / name
        server = serve(address, "--config", "configs/cartpole.yaml", "--run-dir", str(run_dir))
        wait_for(partial(has_stored, run_dir, 500), "rows")
        if name == "one":
            kill(server.process.pid)
            server.wait()
    reported = end(server)
    said = summary(actor)
    assert (said["actor_id"], said["unacked"]) == (0, 0)
    assert [said["env_steps"]] == reported == [replay_of(run_dir).steps]
    assert_whole_episodes(stored_rows(run_dir))


def test_it_waits_for_its_learner_whatever_the_wall_clock_does(
    tmp_path: Path, serve: Callable[..., Command], node: Start
) -> None:
    address, run_dir = f"127.0.0.1:{free_port()}", tmp_path / "run"
    actor = node(address)
    assert actor.stderr is not None
    assert "no answer from the learner yet" in actor.stderr.readline()
    actor.send_signal(signal.SIGUSR2)
    assert "no answer from the learner yet" in actor.stderr.readline()
    server = serve(address, "--config", "configs/cartpole.yaml", "--run-dir", str(run_dir))
    wait_for(partial(has_stored, run_dir, 500), "rows")
    reported = end(server)
    assert [summary(actor)["env_steps"]] == reported


def test_it_hands_over_its_rows_and_starts_over_where_its_settings_have_changed(
    tmp_path: Path, serve: Callable[..., Command], node: Start
) -> None:
    address, run_dir = f"127.0.0.1:{free_port()}", tmp_path / "run"
    actor = node(address)
    first = serve(address, "--config", "configs/cartpole.yaml", "--run-dir", str(run_dir))
    wait_for(partial(has_stored, run_dir, 500), "rows")
    kill(first.process.pid)
    first.wait()
    stored = replay_of(run_dir).steps
    second = serve(address, "--resume", str(run_dir), "--set", "exploration.epsilons=[0.3]")
    wait_for(partial(has_stored, run_dir, stored + 1000), "rows of the new settings")
    reported = end(second)
    said = summary(actor)
    assert said["unacked"] == 0
    assert reported[-1] == said["env_steps"] > 0
    assert sum(reported) == replay_of(run_dir).steps, "the rows of both incarnations"


def test_a_saved_policy_is_read_as_the_page_says(tmp_path: Path) -> None:
    agent = dqn(seed=3)
    Checkpoints(tmp_path, CONFIG, "run-id").save("best", agent, opt_steps=12)
    page = (ROOT / "docs" / "protocol.md").read_text()
    (snippet,) = re.findall(r"```javascript\n(const saved = .*?)```", page, re.DOTALL)
    script = (
        'import { readFileSync } from "node:fs";\n'
        f'import {{ QNetwork, readTensors }} from "{HERE}/network.mjs";\n'
        + snippet.replace("runs/fruit/best", str(tmp_path / "best"))
        + f"console.log(JSON.stringify({OBS.tolist()}.map((obs) => network.values(obs))));"
    )
    (tmp_path / "read.mjs").write_text(script)
    done = subprocess.run([str(NODE), tmp_path / "read.mjs"], capture_output=True, text=True, check=True)
    np.testing.assert_array_equal(np.argmax(json.loads(done.stdout), axis=1), agent.sample(OBS))
