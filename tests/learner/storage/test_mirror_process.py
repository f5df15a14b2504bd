"""A learner that mirrors its run in a process of its own, and others that go on from there."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from common.errors import CheckpointError, RunDirectoryError, TakenOverError
from learner.commands.learner_server import main
from learner.loop.server import train_async
from learner.shared.mirror_block import MirrorBlock
from learner.storage import mirror as mirror_module
from learner.storage import mirror_child
from learner.storage.mirror import EPOCH_FILE, Mirror
from learner.storage.mirror_child import MirrorBoot, begin, claim
from learner.storage.mirror_store import ANSWER_SECONDS, MirrorStore
from learner.storage.mirroring import Mirroring
from learner.storage.restoring import restore
from tests.conftest import Command, children_of, endpoints, free_port, kill, kill_whole, merged, wait_for
from tests.e2e.test_by_hand import CALM, grows, steps_by_actor, trains
from tests.e2e.test_resume import kept
from tests.forked_children import forked_children
from tests.learner.loop.test_run import configured, replay_of
from tests.learner.scrapes import scrape
from tests.learner.storage.mirrored import RUN_ID, MirroredRun

Start = Callable[..., Command]
WriteConfig = Callable[..., Path]


def mirrored(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    storage = {"mirror": f"file://{tmp_path}/mirror", "mirror_seconds": 0.2}
    return merged(CALM, merged({"storage": storage, "trainer": {"checkpoint_seconds": 0.2}}, changes))


def start_mirrored(start: Start, write_config: WriteConfig, tmp_path: Path) -> tuple[Command, MirrorBlock]:
    """A learner that trains and has rows in its mirror, and what its mirror's process tells."""
    server = start("learner-server", "--config", str(write_config(**mirrored(tmp_path))), "--local-actors", "1")
    endpoints(tmp_path / "run")
    block = MirrorBlock.open(tmp_path / "run" / "shared", writable=False)
    wait_for(lambda: block.mirrored > 50, "rows in the mirror")
    return server, block


def mirror_process_of(server: Command) -> int:
    children = children_of(server.process.pid)
    (found,) = [pid for pid in children if b"mirror_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def is_mirrored(run: Path, rows: int) -> bool:
    return bool(MirrorBlock.open(run / "shared", writable=False).mirrored > rows)


def test_what_a_run_leaves_at_its_end_is_in_the_mirror(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/mirror"
    train_async(configured(tmp_path / "run", 30, storage={"mirror": url, "mirror_seconds": 3600}), 1)
    shutil.move(tmp_path / "run", tmp_path / "gone")
    command = ["--resume", url, "--run-dir", str(tmp_path / "other")]
    assert main([*command, "--set", "trainer.max_opts=40", "--local-actors", "1"]) == 0
    assert replay_of(tmp_path / "other").committed >= replay_of(tmp_path / "gone").committed
    assert kept(tmp_path / "other") == 40
    before = (tmp_path / "gone" / "final" / "meta.json").read_text()
    assert json.loads(before)["opt_steps"] == 30


def test_a_learner_told_to_end_mirrors_its_last_row(start: Start, write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(**mirrored(tmp_path, storage={"mirror_seconds": 3600}))
    server = start("learner-server", "--config", str(config), "--local-actors", "1")
    wait_for(lambda: trains(tmp_path / "run"), "it trains")
    wait_for(lambda: replay_of(tmp_path / "run").committed > 200, "rows")
    server.signal(signal.SIGTERM)
    assert server.wait() == 143, server.output()
    newest = Mirror(f"file://{tmp_path}/mirror").find_newest()
    assert newest is not None
    assert newest.segments[-1].end == replay_of(tmp_path / "run").committed
    assert {"final/meta.json", f"checkpoints/{kept(tmp_path / 'run')}/manifest.json"} <= newest.files.keys()


def test_a_learner_that_another_one_takes_over_from_ends_and_does_not_send_its_actors_away(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    first = start("learner-server", "--config", str(write_config(**mirrored(tmp_path))))
    actor = start("actor-worker", "--learner", endpoints(run)["learner"])
    wait_for(lambda: steps_by_actor(run), "the actor joins")
    grows(run, {actor.process.pid})
    wait_for(lambda: is_mirrored(run, 100), "rows in the mirror")
    figures = scrape(endpoints(run)["trainer_metrics_port"])
    assert figures["mirror_states_total"] > 0
    assert figures["mirror_bytes_total"] > 0
    assert figures["mirror_failures_total"] == 0
    url, port = f"file://{tmp_path}/mirror", endpoints(run)["learner"]
    second = start("learner-server", "--resume", url, "--run-dir", str(other), "--listen", "127.0.0.1:0")
    assert first.wait() == TakenOverError.exit_code, first.output()
    assert "another learner has taken over this run" in first.output()
    endpoints(other)
    assert actor.process.poll() is None
    assert "told to stop" not in actor.output()
    again = start("learner-server", "--resume", str(run), "--listen", port)
    assert again.wait() == TakenOverError.exit_code, again.output()
    assert "another learner has gone on with the run since" in again.output()
    assert second.process.poll() is None


@pytest.mark.own_children
def test_the_same_command_begins_a_run_and_goes_on_with_it_on_another_host(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ("learner-server", "--config", str(write_config(**mirrored(tmp_path))), "--resume", "--local-actors", "1")
    server = start(*command)
    endpoints(run)
    wait_for(lambda: is_mirrored(run, 200) and kept(run) > 10, "rows and a checkpoint in the mirror")
    kill_whole(server.process.pid)
    server.wait()
    shutil.rmtree(run)
    with forked_children():
        again = start(*command)
    wait_for(lambda: "restored from" in again.output(), "the run is restored")
    wait_for(lambda: (run / "shared" / "replay").exists() and replay_of(run).committed > 300, "it goes on")


def test_a_mirror_process_that_dies_is_started_again_and_goes_on(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    server, block = start_mirrored(start, write_config, tmp_path)
    epoch = block.epoch
    kill(mirror_process_of(server))
    before = replay_of(run).committed
    wait_for(lambda: block.mirrored > before, "later rows in the mirror")
    assert block.epoch == epoch
    assert scrape(endpoints(run)["trainer_metrics_port"])["child_restarts_total[mirror]"] == 1


def test_a_mirror_process_that_dies_while_the_directory_of_the_run_is_away_mirrors_no_other_one(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    server, block = start_mirrored(start, write_config, tmp_path)
    run.rename(away)
    shutil.copytree(away, run)
    kill(mirror_process_of(server))
    wait_for(lambda: "mirror is started again once its files can be used" in server.output(), "that it waits")
    states, before = block.states, replay_of(away).committed
    wait_for(lambda: replay_of(away).committed > before, "training goes on")
    assert block.states == states, "nothing is mirrored"
    run.rename(tmp_path / "other")
    away.rename(run)
    wait_for(lambda: block.mirrored > before, "later rows in the mirror")


def test_a_mirror_process_that_dies_while_the_mirror_is_away_goes_on_when_it_is_back(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run, mirror = tmp_path / "run", tmp_path / "mirror"
    server, block = start_mirrored(start, write_config, tmp_path)
    epoch = block.epoch
    mirror.rename(tmp_path / "away")
    kill(mirror_process_of(server))
    port = endpoints(run)["trainer_metrics_port"]
    wait_for(lambda: scrape(port)["child_restarts_total[mirror]"] == 1, "it is started again while the mirror is away")
    failures, rows = block.failures, replay_of(run).committed
    wait_for(lambda: block.failures > failures, "failures are counted")
    wait_for(lambda: replay_of(run).committed > rows + 50, "training goes on")
    assert block.mirrored <= rows, "nothing is mirrored"
    shutil.rmtree(mirror, ignore_errors=True)  # A state that was on its way may have gone there in part.
    (tmp_path / "away").rename(mirror)
    wait_for(lambda: block.mirrored > rows, "it catches up")
    assert block.epoch == epoch


def test_while_the_mirror_cannot_be_reached_training_goes_on_and_it_catches_up(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run, mirror = tmp_path / "run", tmp_path / "mirror"
    server, block = start_mirrored(start, write_config, tmp_path)
    for place in ("a file", "nothing", "an empty directory"):
        failures = block.failures
        mirror.rename(tmp_path / "away")
        if place == "a file":
            mirror.touch()  # No directory can be made in its place.
        elif place == "an empty directory":  # Its disk is no longer mounted.
            mirror.mkdir()
        wait_for(lambda failures=failures: block.failures > failures + 1, f"failures: {place}")  # type: ignore[misc]
        rows = replay_of(run).committed
        wait_for(lambda rows=rows: replay_of(run).committed > rows + 50, "training goes on")  # type: ignore[misc]
        assert block.mirrored <= rows, place
        if place == "a file":
            wait_for(lambda: "is not mirrored, the next one is tried" in server.output(), "the log says so, seldom")
            mirror.unlink()
        else:
            shutil.rmtree(mirror, ignore_errors=True)  # A state that was on its way may have gone there in part.
        (tmp_path / "away").rename(mirror)
        wait_for(lambda rows=rows: block.mirrored > rows, "it catches up")  # type: ignore[misc]
        newest = Mirror(f"file://{mirror}").find_newest()
        assert newest is not None
        assert newest.segments[-1].end > rows, place
    restore(Mirror(f"file://{mirror}"), tmp_path / "other")  # It takes the run over from the learner.
    assert replay_of(tmp_path / "other").committed > rows


def test_a_mirror_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mirror").touch()
    monkeypatch.setattr(mirror_child, "CLAIM_SECONDS", 0.0)
    boot = MirrorBoot(run=tmp_path, run_id="0", url=f"file://{tmp_path}/mirror/below", seconds=1.0)
    with pytest.raises(RunDirectoryError, match=r"storage.mirror: file://.*/mirror/below: NotADirectoryError"):
        claim(boot)


@pytest.mark.parametrize("place", ["cannot be written", "gives no answer"])
def test_a_run_that_is_resumed_while_its_mirror_cannot_be_written_goes_on_and_claims_it_later(
    start: Start, write_config: WriteConfig, tmp_path: Path, place: str
) -> None:
    run, mirror = tmp_path / "run", tmp_path / "mirror"
    server = start("learner-server", "--config", str(write_config(**mirrored(tmp_path))), "--local-actors", "1")
    endpoints(run)
    wait_for(lambda: is_mirrored(run, 50) and kept(run) > 0, "rows and a checkpoint in the mirror")
    former = MirrorBlock.open(run / "shared", writable=False).epoch
    kill_whole(server.process.pid)
    server.wait()
    hangs = mirror / "states" / f"{2**62:020d}-{1:012d}"
    if place == "gives no answer":
        os.mkfifo(hangs)  # Its opening waits for a writer.
    else:
        mirror.rename(tmp_path / "away")
        mirror.touch()  # No directory can be made in its place.
    rows = replay_of(run).committed
    again = start("learner-server", "--resume", str(run), "--local-actors", "1")
    wait_for(lambda: "the run goes on without its mirror" in again.output(), "the log says so", seconds=120)
    wait_for(lambda: replay_of(run).committed > rows + 50, "it trains", seconds=120)
    block = MirrorBlock.open(run / "shared", writable=False)
    assert block.epoch == former, "actors are told of no epoch that is not claimed"
    if place == "gives no answer":
        hangs.unlink()
    else:
        mirror.unlink()
        (tmp_path / "away").rename(mirror)
    wait_for(lambda: block.mirrored > rows + 50, "it catches up", seconds=120)
    assert block.epoch > former
    other = start("learner-server", "--resume", f"file://{mirror}", "--run-dir", str(tmp_path / "other"))
    assert again.wait() == TakenOverError.exit_code, again.output()
    assert other.process.poll() is None


def begin_late(run: MirroredRun, monkeypatch: pytest.MonkeyPatch) -> Mirroring:
    """Begin a life of a run whose mirror is away, as its process does."""
    monkeypatch.setattr(mirror_child, "CLAIM_SECONDS", 0.0)
    line = MirrorBoot(run=run.run, run_id=RUN_ID, url=run.url, seconds=1.0, may_begin_late=True)
    boot, claimed = begin(line)
    assert claimed is None
    assert boot.is_late
    return Mirroring(run.run, RUN_ID, Mirror(run.url), None, block=run.block, seconds=1.0, is_away=True, is_late=True)


def test_a_run_whose_mirror_has_a_driver_that_cannot_connect_is_resumed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MirroredRun(tmp_path)
    monkeypatch.setattr(run, "url", f"ftp://127.0.0.1:{free_port()}/runs")
    late = begin_late(run, monkeypatch)
    with pytest.raises(OSError, match="ConnectionRefusedError"):
        late.write_state()


class CutStore(MirrorStore):
    """A place whose network is cut just after a claim has arrived, until somebody waits."""

    is_cut = was_cut = False

    def _reaching(self, seconds: float = ANSWER_SECONDS) -> Any:
        if CutStore.is_cut:
            raise OSError("the network is cut")
        return super()._reaching(seconds)

    def write(self, directory: str, name: str, content: bytes) -> None:
        super().write(directory, name, content)
        CutStore.is_cut = directory == "claims" and not CutStore.was_cut
        CutStore.was_cut |= CutStore.is_cut


@pytest.mark.parametrize("comes_back", ["within the start", "later"])
def test_a_learner_is_not_ended_by_a_claim_of_its_own_whose_answer_it_did_not_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: str
) -> None:
    run = MirroredRun(tmp_path)
    run.store(4)
    run.mirroring.write_state()
    restore(Mirror(run.url), tmp_path / "other")
    monkeypatch.setattr(CutStore, "is_cut", False)
    monkeypatch.setattr(CutStore, "was_cut", False)
    monkeypatch.setattr(mirror_module, "MirrorStore", CutStore)
    if comes_back == "within the start":
        monkeypatch.setattr("learner.storage.mirror_child.time.sleep", lambda _: setattr(CutStore, "is_cut", False))
        other, newest = claim(MirrorBoot(run=tmp_path / "other", run_id=RUN_ID, url=run.url, seconds=1.0))
        assert newest is not None
        other.write(dataclasses.replace(newest, epoch=other.epoch))
        with pytest.raises(TakenOverError):
            run.mirroring.write_state()
    else:
        late = begin_late(run, monkeypatch)
        CutStore.is_cut = False
        run.store(4)
        assert late.write_state()
        assert run.block.mirrored == run.memory.committed


@pytest.mark.parametrize("has_state", [True, False])
def test_a_run_that_is_resumed_without_its_mirror_ends_if_another_host_has_claimed_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_state: bool
) -> None:
    run, mirror = MirroredRun(tmp_path), tmp_path / "mirror"
    run.store(4)
    run.mirroring.write_state()
    restore(Mirror(run.url), tmp_path / "other")
    other, newest = claim(MirrorBoot(run=tmp_path / "other", run_id=RUN_ID, url=run.url, seconds=1.0))
    assert newest is not None
    if has_state:
        other.write(dataclasses.replace(newest, epoch=other.epoch))
    mirror.rename(tmp_path / "away")
    mirror.touch()
    late = begin_late(run, monkeypatch)
    with pytest.raises(OSError, match="NotADirectoryError"):
        late.write_state()
    mirror.unlink()
    (tmp_path / "away").rename(mirror)
    with pytest.raises(TakenOverError):
        late.write_state()
    other.write(dataclasses.replace(newest, epoch=other.epoch))


def test_of_copies_of_a_run_directory_that_are_resumed_without_the_mirror_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mirror = MirroredRun(tmp_path), tmp_path / "mirror"
    run.store(4)
    run.mirroring.write_state()
    mirror.rename(tmp_path / "away")
    mirror.touch()
    late = begin_late(run, monkeypatch)
    shutil.copytree(run.run, tmp_path / "copy")
    run.run = tmp_path / "copy"
    copy = begin_late(run, monkeypatch)
    mirror.unlink()
    (tmp_path / "away").rename(mirror)
    assert copy.write_state()
    with pytest.raises(TakenOverError):
        late.write_state()
    assert copy.write_state()


def test_a_run_whose_acknowledgements_wait_for_the_mirror_is_not_resumed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MirroredRun(tmp_path)
    (tmp_path / "mirror").rename(tmp_path / "away")
    (tmp_path / "mirror").touch()
    monkeypatch.setattr(mirror_child, "CLAIM_SECONDS", 0.0)
    with pytest.raises(
        RunDirectoryError, match=r"storage.mirror: .*NotADirectoryError.*; start the learner again when"
    ):
        begin(MirrorBoot(run=run.run, run_id=RUN_ID, url=run.url, seconds=1.0))


def test_a_start_says_that_the_mirror_is_no_longer_where_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = MirroredRun(tmp_path)
    (run.run / EPOCH_FILE).unlink()  # It was never mirrored.
    boot = MirrorBoot(run=run.run, run_id=RUN_ID, url=run.url, seconds=1.0)
    claim(boot)
    assert not caplog.text, "the first mirror of a run begins in an empty place"
    shutil.rmtree(tmp_path / "mirror")
    claim(boot)
    assert "found no state of the run, which was mirrored before: a mirror begins" in caplog.text


def test_of_learners_that_restore_one_run_at_once_the_last_one_goes_on(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.mirroring.write_state()
    hosts = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for host in hosts:
        restore(Mirror(run.url), host)
    first, second, last = (MirrorBoot(run=host, run_id=RUN_ID, url=run.url, seconds=1.0) for host in hosts)
    for former in (second, first):
        with pytest.raises(TakenOverError, match="another learner has taken over this run"):
            claim(former)
    newest, _ = claim(last)
    newest.require_owner()
    again, _ = claim(second)  # The last one may have failed: another start of a former one goes on.
    again.require_owner()


def test_files_that_are_replaced_whenever_they_are_read_cost_a_state_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = MirroredRun(tmp_path)
    monkeypatch.setattr(run.mirroring, "_send_files", raise_replaced)
    assert mirror_child._write_state(run.mirroring, run.block) is None
    assert run.block.failures == 1
    assert "is not mirrored, the next one is tried (0 more before): best: it was replaced" in caplog.text


def raise_replaced() -> None:
    raise CheckpointError("best: it was replaced")


class InterruptedStore(MirrorStore):
    """A place where something else happens before the n-th call that reaches it, and before each later one."""

    left, happen = 0, staticmethod(lambda: None)

    def _reaching(self, seconds: float = ANSWER_SECONDS) -> Any:
        InterruptedStore.left -= 1
        if InterruptedStore.left < 0:
            InterruptedStore.happen()
        return super()._reaching(seconds)


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("n", range(30))
def test_wherever_another_learner_restores_the_run_while_one_begins_just_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, *, has_state: bool
) -> None:
    run, owners, others = MirroredRun(tmp_path), list[Mirror](), list[Mirror]()
    run.mirroring.write_state()
    restore(Mirror(run.url), tmp_path / "one")

    def begin(host: str) -> Mirror:
        mirror, newest = claim(MirrorBoot(run=tmp_path / host, run_id=RUN_ID, url=run.url, seconds=1.0))
        assert newest is not None
        if has_state:
            mirror.write(dataclasses.replace(newest, epoch=mirror.epoch))
        return mirror

    def begin_other_or_look() -> None:
        monkeypatch.setattr(secrets, "randbelow", lambda _: 0)
        monkeypatch.setattr(mirror_module, "MirrorStore", MirrorStore)
        if not others:
            restore(Mirror(run.url), tmp_path / "other")
            others.append(begin("other"))
        elif others[0] not in ended:
            try:
                others[0].require_owner()
            except TakenOverError:
                ended.append(others[0])

    ended = list[Mirror]()
    monkeypatch.setattr(secrets, "randbelow", lambda most: most - 1)
    monkeypatch.setattr(mirror_module, "MirrorStore", InterruptedStore)
    monkeypatch.setattr(InterruptedStore, "left", n)
    monkeypatch.setattr(InterruptedStore, "happen", staticmethod(begin_other_or_look))
    with suppress(TakenOverError):
        owners.append(begin("one"))
    monkeypatch.setattr(InterruptedStore, "happen", staticmethod(lambda: None))
    if not others:
        begin_other_or_look()
    going_on = 0
    for mirror in [*owners, *others]:
        with suppress(TakenOverError):
            mirror.require_owner()
            going_on += mirror not in ended
    assert going_on == 1
