from __future__ import annotations

import pytest

from common.errors import ConfigError, LearnerUnreachableError
from learner.commands.selection import count_actors, make_selecting_parser, open_admin_clients, selection_of
from learner.ingest.cordons import Selection

PARSER = make_selecting_parser("some", "Something.", "")


def chosen(*words: str) -> Selection:
    return selection_of(PARSER.parse_args(["--learner", "a:1", *words]))


def test_hosts_and_ids_may_be_given_together_and_again() -> None:
    found = chosen("--host", "cpu-1", "cpu-2", "--actor", "3", "--host", "cpu-4")
    assert found == Selection(frozenset({3}), frozenset({"cpu-1", "cpu-2", "cpu-4"}))
    assert chosen("--all") == Selection(everybody=True)


def test_a_command_that_names_no_actor_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected --host, --actor or --all, found none of them"):
        chosen()


def test_the_command_goes_to_every_rank_that_is_named() -> None:
    arguments = PARSER.parse_args(["--learner", "127.0.0.1:1,127.0.0.1:2", "--all"])
    with open_admin_clients(arguments) as clients:
        for client, address in zip(clients, ("127.0.0.1:1", "127.0.0.1:2"), strict=True):
            with pytest.raises(LearnerUnreachableError, match=address):
                client.cordon(selection_of(arguments))


def test_one_actor_is_counted_as_one() -> None:
    assert [count_actors(count) for count in (0, 1, 2)] == ["0 actors", "1 actor", "2 actors"]
