from __future__ import annotations

import numpy as np
import pytest

from common.data import Items
from common.errors import RefusedError
from learner.ingest.episode_flags import check_flags

FLAGS = ("first", "final", "terminated", "truncated")


def rows(told: str, lanes: str = "") -> Items:
    """Rows of which each letter tells: b begins, t terminated, u truncated, f final, - none of them."""
    letters = dict(zip(FLAGS, "bftu", strict=True))
    items = {name: np.array([letter == wanted for letter in told]) for name, wanted in letters.items()}
    return {**items, "lane": np.array([int(lane) for lane in lanes or "0" * len(told)], np.uint16)}


@pytest.mark.parametrize(
    ("told", "lanes"),
    [
        ("b--", ""),
        ("---", ""),
        ("b-tfb-ufb", ""),
        ("--u", ""),
        ("f", ""),
        ("fb-", ""),
        ("-t-tb-", ""),
        ("bb--tuffbb--", "010101010101"),
        ("t-fb", "0101"),
        ("-tf--", "10012"),
    ],
)
def test_whole_episodes_and_parts_of_them_are_taken(told: str, lanes: str) -> None:
    check_flags(rows(told, lanes))


@pytest.mark.parametrize(
    ("told", "lanes", "message"),
    [
        ("b-f--", "", "'first': expected True after a final row of its lane, found False in row 3"),
        ("b-u--", "", "'final': expected True after a truncated row of its lane, found False in row 3"),
        ("b-ub-", "", "'final': expected True after a truncated row of its lane, found False in row 3"),
        ("uu--", "0101", "'final': expected True after a truncated row of its lane, found False in row 2"),
        ("bf---", "10101", "'first': expected True after a final row of its lane, found False in row 3"),
    ],
)
def test_an_episode_that_goes_on_after_its_end_is_refused(told: str, lanes: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as error:
        check_flags(rows(told, lanes))
    assert error.value.reason == "values"


def test_the_first_wrong_row_of_the_batch_is_named_whichever_lane_it_is_of() -> None:
    with pytest.raises(RefusedError, match="found False in row 4"):
        check_flags(rows("-u-u-f", "101101"))


@pytest.mark.parametrize("name", ["first", "terminated", "truncated"])
def test_a_final_row_neither_begins_an_episode_nor_is_a_step(name: str) -> None:
    items = rows("b-f")
    items[name][2] = True
    with pytest.raises(RefusedError, match=f"column '{name}': expected False in a final row, found True in row 2"):
        check_flags(items)


def test_rows_that_do_not_say_how_an_episode_ends_are_checked_for_the_rest() -> None:
    items = {name: column for name, column in rows("b-f-").items() if name not in ("terminated", "truncated")}
    with pytest.raises(RefusedError, match="'first': expected True after a final row"):
        check_flags(items)
