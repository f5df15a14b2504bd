"""The loop of one of several ranks: what it shares, and when. Real ranks are in ``tests/e2e/test_ranks.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from learner.loop.together import Together
from learner.ranks.beginning import Beginning
from learner.ranks.place import Place
from learner.ranks.turns import Said
from learner.shared.rank_table import RankTable
from tests.learner.loop.test_learner import Diary, make
from tests.learner.loop.test_loop import Host

OWN, ADDRESSES = 2, ["a:1", "b:1"]
OPT_STEPS = 8


class Others:
    """The network, with another rank behind it: in each exchange it does as this rank does, and has one actor more."""

    place = Place(rank=0, n_ranks=2)

    def __init__(self, shared: Path) -> None:
        self._shared, self._actors = shared, 0
        self.seen = list[list[float]]()
        """What ingest reads at each exchange: the numbers of actors that it was told by then."""

    def exchange(self, said: Said, _show_life: Callable[[], None]) -> list[list[float]]:
        self.seen.append(RankTable.open(self._shared).actors.tolist())
        self._actors += 1
        return [[*said], [*said._replace(actors=self._actors)]]

    def gather(self, _data: bytes, _size: int) -> Sequence[bytes]:
        return [address.encode() for address in ADDRESSES]

    def close(self) -> None:
        raise AssertionError("this rank does not fail")


def test_ingest_is_told_once_a_second_how_many_actors_each_rank_has(tmp_path: Path) -> None:
    diary, others = Diary(), Others(tmp_path)
    host = Host(tmp_path, diary, make(diary, tmp_path, max_opts=OPT_STEPS))  # An opt step takes half a second.
    host.control.actors_present = OWN
    beginning = Beginning(str(tmp_path), "run", 1, None, opt_steps=0, seconds=0.0, n_ranks=2)
    together = Together(others, beginning, diary, gives_tensors=False, control=host.control, clock=diary.clock)  # type: ignore[arg-type] # the network is another one
    together.listen(host.learner, ADDRESSES[0], tmp_path)
    together.train(host.learner, host.intake, host.publisher, host.traces)
    told = [[0, 0], [OWN, 1], [OWN, 1], [OWN, 3], [OWN, 3], [OWN, 5], [OWN, 5], [OWN, 7], [OWN, 7]]
    assert others.seen == told, "by the exchange of each opt step, and by that in which the ranks end"
