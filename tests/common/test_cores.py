from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from common.cores import bound_to, divide_cores, read_cores, require_usable, write_cores
from common.errors import ConfigError
from common.system import usable_cores
from tests.conftest import cores_of


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8", (0, 1, 2, 3, 8)), (5, (5,)), ("9, 1-2,0", (0, 1, 2, 9)), ("2-2,1-3", (1, 2, 3))]
)
def test_a_list_of_cores_is_read_and_written_as_linux_lists_them(text: object, cores: tuple[int, ...]) -> None:
    assert read_cores(text) == cores
    assert read_cores(write_cores(cores)) == cores


def test_a_list_is_written_in_the_form_in_which_linux_tells_the_cores_of_this_thread() -> None:
    status = Path("/proc/self/status").read_text()
    (told,) = (line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    assert write_cores(usable_cores()) == told
    assert write_cores((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "0:5", "0-3/2", "0-99999999999999", -1, 1.5, None])
def test_another_text_is_no_list_of_cores(text: object) -> None:
    with pytest.raises(ValueError, match=f"expected a list of cores such as 0-3,8, found '{text}'"):
        read_cores(text)


def test_processes_get_equal_shares_and_share_cores_if_these_are_few() -> None:
    assert divide_cores(range(4, 7), 3) == [(4,), (5,), (6,)]
    assert divide_cores(range(10), 4) == [(0, 1), (2, 3, 4), (5, 6), (7, 8, 9)]
    assert divide_cores((4, 6), 5) == [(4,), (6,), (4,), (6,), (4,)]
    assert divide_cores((), 2) == [(), ()]


def test_all_threads_are_bound_and_so_are_later_ones_until_the_end_of_the_context() -> None:
    before, end = usable_cores(), threading.Event()
    earlier, later = (threading.Thread(target=end.wait) for _ in range(2))
    earlier.start()
    try:
        with bound_to(before[:1], "trainer.cores") as left:
            later.start()
            assert left == before[1:]
            assert cores_of(os.getpid()) == before[:1]
        assert cores_of(os.getpid()) == before
    finally:
        end.set()
        earlier.join()
        later.join()


def test_cores_that_this_process_may_not_use_are_named_beside_those_that_it_may() -> None:
    usable = usable_cores()
    with (
        bound_to(usable[:1], "a test"),
        pytest.raises(ConfigError, match=rf"^--cores: .* may use \({usable[0]}\), found {usable[0]},9999$"),
    ):
        require_usable((usable[0], 9999), "--cores")


def test_a_system_that_cannot_bind_processes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    with (
        pytest.raises(ConfigError, match=r"^trainer\.cores: expected Linux, .*, found linux$"),
        bound_to((0,), "trainer.cores"),
    ):
        pass
