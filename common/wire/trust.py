"""What an actor and its learner demand of each other before they work together."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field

from common.errors import ConfigError
from common.settings import Settings
from common.wire.address import is_loopback
from common.wire.tokens import ACTOR_VARIABLE, Tokens

ANY: Final = "any"
"""In ``allow``: the learner may name whatever code it likes."""


class Trust(Settings):
    """How an actor checks its learner, proves itself to it, and what it lets it name.

    TLS is spoken to every host but this one; to this one too as soon as a file is given.
    """

    ca: Path | None = Field(None, description="Authorities the learner's certificate must descend from; null: public.")
    certificate: Path | None = Field(None, description="The actor's own certificate, for mutual TLS.")
    key: Path | None = Field(None, description="The private key of that certificate.")
    token_file: Path | None = Field(None, description="Holds the actor's token; null: from the environment, if there.")
    insecure: bool = Field(False, description="Speak to a host beyond loopback although nothing is encrypted.")
    allow: tuple[str, ...] = Field(
        (),
        description="What the learner may name besides crossborder's own parts: module:attr, or modules; any: all "
        "there is; empty: nothing, or all there is from a learner on this host.",
    )

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

    def allows_anything(self, host: str) -> bool:
        """Whether a learner on ``host`` may name whatever code it likes.

        One on this host may unless ``allow`` says less: it could start that code itself. Others may by ``any`` only.
        """
        return ANY in self.allow or (not self.allow and is_loopback(host))
