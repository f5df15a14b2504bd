from __future__ import annotations

import pytest

from common import errors
from common.errors import ConfigError, CrossborderError, FaultError, PluginError, by_exit_code, naming_failed_part
from common.wire.rpc import NotJoinedError

KINDS = CrossborderError.__subclasses__()
OURS = [kind for kind in KINDS if kind.__module__ == errors.__name__]


def test_every_error_has_an_exit_code_of_its_own_that_shells_and_signals_do_not_use() -> None:
    codes = [kind.exit_code for kind in OURS]
    assert len(set(codes)) == len(codes)
    assert all(1 < code < 126 for code in codes)


@pytest.mark.parametrize("kind", OURS)
def test_an_error_is_found_again_by_its_exit_code(kind: type[CrossborderError]) -> None:
    found = by_exit_code(kind.exit_code, "what happened")
    assert type(found) is kind
    assert str(found) == "what happened"


@pytest.mark.parametrize("code", [NotJoinedError.exit_code, 99, -9])
def test_an_unknown_exit_code_gives_the_base_of_all_errors(code: int) -> None:
    found = by_exit_code(code, "what happened")
    assert type(found) is CrossborderError
    assert found.exit_code == 1
    assert str(found) == "what happened"


@pytest.mark.parametrize("kind", OURS)
def test_the_table_of_the_module_lists_every_error_with_its_code(kind: type[CrossborderError]) -> None:
    assert errors.__doc__ is not None
    lines = [line.split() for line in errors.__doc__.splitlines() if kind.__name__ in line]
    assert [line[2] for line in lines] == [str(kind.exit_code)]


def test_an_exception_that_cannot_be_put_into_words_is_named_by_its_class() -> None:
    class UnsayableError(Exception):
        def __str__(self) -> str:
            raise OSError("no words")

    message = r"^the arm: UnsayableError \(its message is missing: __str__ has raised OSError\)$"
    with pytest.raises(PluginError, match=message), naming_failed_part("the arm"):
        raise UnsayableError


def test_a_part_that_raises_anything_is_named_and_an_error_of_ours_stays_as_it_is() -> None:
    with (
        pytest.raises(PluginError, match=r"^the arm cannot move: OSError: no arm$"),
        naming_failed_part("the arm cannot move"),
    ):
        raise OSError("no arm")
    with pytest.raises(PluginError, match=r"^the arm cannot move: no arm$"), naming_failed_part("the arm cannot move"):
        raise FaultError("no arm")
    with pytest.raises(ConfigError, match=r"^no arm$"), naming_failed_part("the arm cannot move"):
        raise ConfigError("no arm")
