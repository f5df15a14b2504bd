from __future__ import annotations

import doctest

import pytest

from learner.records import masking
from learner.records.masking import mask_secrets
from tests.conftest import MakeConfig


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "api_key",
        "apiKey",
        "HF_TOKEN",
        "aws_secret",
        "credentials",
        "Authorization",
        "private-key",
        "passwd",
        "accessToken",
        "clientSecret",
        "pwd",
        "pw",
        "api_keys",
        "private_key_pem",
        "secret_key",
        "connection_string",
        "dsn",
        "tokens",
        "pin",
    ],
)
def test_a_text_under_the_key_of_a_secret_is_masked_wherever_it_is(key: str) -> None:
    found = mask_secrets({"env": {"params": {key: "s3cret", "robots": [{key: "s3cret"}]}}, key: ["s3cret"]})
    assert found == {"env": {"params": {key: "***", "robots": [{key: "***"}]}}, key: ["***"]}


@pytest.mark.parametrize("key", ["actor_token_file", "key", "author", "tokens_per_step", "keyboard"])
def test_other_texts_stay(key: str) -> None:
    assert mask_secrets({key: "certs/learner.pem"}) == {key: "certs/learner.pem"}


def test_numbers_stay_also_under_such_a_key() -> None:
    assert mask_secrets({"max_tokens": 3, "password": None}) == {"max_tokens": 3, "password": None}


def test_the_user_of_a_url_is_masked() -> None:
    assert mask_secrets({"uri": "postgresql://me:pw@db:5432/runs"}) == {"uri": "postgresql://***@db:5432/runs"}
    assert mask_secrets({"uri": "postgresql://me:p@w@db/runs"}) == {"uri": "postgresql://***@db/runs"}
    assert mask_secrets({"uri": "http://mlflow:5000/a@b"}) == {"uri": "http://mlflow:5000/a@b"}


def test_everything_under_the_key_of_a_secret_is_masked() -> None:
    assert mask_secrets({"headers": {"X-Robot": "s3cret"}, "token": {"value": ["s3cret"]}}) == {
        "headers": {"X-Robot": "***"},
        "token": {"value": ["***"]},
    }


@pytest.mark.parametrize("text", ["https://h/x?a=1&token={}", "Server=x;Password={};b=2", "host=h password={}"])
def test_a_secret_that_a_text_assigns_is_masked(text: str) -> None:
    assert mask_secrets({"url": text.format("s3cret")}) == {"url": text.format("***")}


def test_a_configuration_without_secrets_is_as_it_was(make_config: MakeConfig) -> None:
    values = make_config().model_dump(mode="json")
    assert mask_secrets(values) == values


def test_the_example_is_right() -> None:
    assert doctest.testmod(masking).failed == 0
