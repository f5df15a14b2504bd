"""The ports at which a learner listens, and ``endpoints.json`` in the run's directory, which names them."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from common.config.run_config import FREE_PORTS, RunConfig
from common.depth import parse_json
from common.errors import AddressError, ConfigError
from common.wire.address import join_address, split_address
from common.wire.endpoints import find_free_pair, require_free_port
from learner.storage.rundir import ENDPOINTS, FORMER_ENDPOINTS, RunDir

log = logging.getLogger(__name__)


class Ports:
    """Chooses the ports of one life of a learner.

    A run that goes on first tries the ports of its former life, where actors and Prometheus look for it, unless its
    configuration names others.

    Args:
        config: of the run.
        directory: of the run.
    """

    def __init__(self, config: RunConfig, directory: RunDir) -> None:
        self._config, self._directory = config, directory
        former = _read_ports(directory.path / FORMER_ENDPOINTS) if directory.is_resumed else (0, 0)
        self._former = dict(zip(FREE_PORTS, former, strict=True))

    def require_free(self) -> None:
        """Check the ports that the configuration names before a run begins, which would be in the way of the next.

        Raises:
            AddressError: another program has one of them.
        """
        for key, host, port in self._config.places_to_listen():
            if len(self._config.ports_to_try(key)) == 1:
                require_free_port(key, host, port)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses for actors, in the order in which they are tried."""
        return self._find("server.listen")

    def find_metrics_ports(self) -> tuple[int | None, ...]:
        """The ports that the trainer's /metrics tries; ingest tries the ports after them. None: nothing is served.

        If the ports may be any, the first is one of a free pair. Should another program take one of the pair before we
        listen there, 0 comes second.
        """
        host = self._config.metrics.host
        if self._config.metrics.listen is None:
            return (None,)
        ports = [split_address(address)[1] for address in self._find("metrics.listen")]
        if ports[-1]:  # The configuration names the port.
            return tuple(ports)
        for port in filter(None, ports):
            with suppress(AddressError):
                for each in (port, port + 1):
                    require_free_port("metrics.listen", host, each)
                return (port, 0)
        return (find_free_pair(host), 0)

    def write(self, address: str, trainer: int | None, ingest: int | None) -> None:
        """Write ``endpoints.json``: the address for actors, and the ports of the trainer's and of ingest's /metrics."""
        found = (address, join_address(self._config.metrics.host, trainer or 0))
        tried = [places[0] for key in FREE_PORTS if len(places := self._find(key)) > 1]
        if taken := [place for place in tried if place not in found]:
            log.warning("other programs have the usual ports (%s): free ones take their place", ", ".join(taken))
        run_dir = self._directory.path
        log.info("listening on %s, metrics on ports %s and %s; run directory %s", address, trainer, ingest, run_dir)
        endpoints = {"learner": address, "trainer_metrics_port": trainer, "ingest_metrics_port": ingest}
        self._directory.write_json(ENDPOINTS, endpoints)

    def _find(self, key: str) -> tuple[str, ...]:
        """The addresses that a setting allows, in the order in which they are tried; none if nothing is served."""
        places = tuple(place for place in self._config.ports_to_try(key) if place is not None)
        if not places or split_address(places[-1])[1] or not self._former[key]:
            return places
        return (join_address(split_address(places[0])[0], self._former[key]), *places)


def _read_ports(path: Path) -> tuple[int, int]:
    """The ports for actors and of the trainer's /metrics in such a file; 0 where it names none."""
    try:
        found = parse_json(path.read_text())
        return split_address(found["learner"])[1], int(found["trainer_metrics_port"] or 0)
    except FileNotFoundError:
        pass  # The former life was killed before it listened.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ConfigError) as error:
        log.warning("%s: %s; the learner listens where its configuration says", path, error)
    return 0, 0
