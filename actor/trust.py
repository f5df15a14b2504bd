"""What an actor and its learner demand of each other before they work together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from common.address import is_loopback
from common.config import ActorConfig
from common.errors import ConfigError, PluginError
from common.settings import Settings
from common.tokens import ACTOR_VARIABLE, Tokens


class Trust(Settings):
    """How an actor checks its learner, proves itself to it, and what it lets it name.

    TLS is spoken to every host but this one; to this one too as soon as a file is given.
    """

    ca: Path | None = Field(None, description="Authorities the learner's certificate must descend from; null: public.")
    certificate: Path | None = Field(None, description="The actor's own certificate, for mutual TLS.")
    key: Path | None = Field(None, description="The private key of that certificate.")
    token_file: Path | None = Field(None, description="Holds the actor's token; null: from the environment, if there.")
    insecure: bool = Field(False, description="Speak to a host beyond loopback although nothing is encrypted.")
    allow: tuple[str, ...] = Field((), description="Modules the learner may name parts from; empty: any.")

    def uses_tls(self, host: str) -> bool:
        """Whether to speak TLS to ``host``.

        Raises:
            ConfigError: these settings contradict each other.
        """
        files = [name for name in ("ca", "certificate", "key", "token_file") if getattr(self, name)]
        if self.insecure and files:
            raise ConfigError(f"--insecure: expected none of {', '.join(files)} beside it: nothing would be encrypted")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--certificate and --key: expected both or neither, found one of them")
        return bool(files) or not (self.insecure or is_loopback(host))

    def tokens(self) -> Tokens | None:
        """The token to send; None if there is none.

        Raises:
            ConfigError: it cannot be read.
        """
        return Tokens.find(self.token_file, ACTOR_VARIABLE)

    def check_names(self, config: ActorConfig) -> None:
        """See that all that ``config`` names lies within ``allow``, before anything is imported.

        Any text with a colon may be imported by somebody (gymnasium reads ``module:Name-v0``), so each is looked at.

        Raises:
            PluginError: something does not.
        """
        for text in _texts(config.model_dump(mode="json")) if self.allow else ():
            if ":" in text and not any(_within(text, allowed) for allowed in self.allow):
                raise PluginError(f"the learner names '{text}', which --allow {' '.join(self.allow)} does not cover")


def _within(target: str, allowed: str) -> bool:
    """A module allows itself and what lies below it, ``module:attr`` only itself."""
    module = target.partition(":")[0]
    return allowed in (target, module) or module.startswith(f"{allowed}.")


def _texts(value: Any) -> Iterator[str]:
    """Every text in plain values, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
