"""A real Prometheus, a real Alertmanager and a webhook, with the shipped configuration on ports of their own."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PATIENCE, ROOT, free_port, wait_for

SHIPPED = ROOT / "docker" / "prometheus"


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips where a program is not installed, and says so."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (apt-get; see .ci/run)")


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:  # noqa: S310  a server of the test
        return json.loads(response.read())


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):  # noqa: S310  a server of the test
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def running(command: list[str], ready: str, log: Path) -> Iterator[None]:
    """A server as a process, from when ``ready`` answers."""
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            wait_for(lambda: answers(ready) or process.poll() is not None, f"{command[0]} is ready")
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.kill()


class Prometheus:
    """What is asked of one."""

    def __init__(self, url: str) -> None:
        self.url = url

    def values(self, expr: str) -> list[float]:
        """The values that are numbers; an error of the expression is an error here."""
        try:
            answer = get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
        except urllib.error.HTTPError as error:
            pytest.fail(f"{expr}: {error.read().decode()}")
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return [value for value in values if value == value]  # noqa: PLR0124  NaN is no number

    def rules(self) -> list[dict[str, Any]]:
        """All rules as they stand."""
        return [rule for group in get(f"{self.url}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]

    def metrics(self) -> set[str]:
        """Every metric of ours that it has scraped."""
        names = get(f"{self.url}/api/v1/label/__name__/values")["data"]
        return {name for name in names if name.startswith("crossborder_")}


@contextmanager
def prometheus(
    folder: Path,
    endpoints: Mapping[str, Any],
    *,
    hold: str | None = None,
    sooner: Mapping[str, str] | None = None,
    alertmanager: str | None = None,
    serving_port: int | None = None,
) -> Iterator[Prometheus]:
    """Scrapes a learner host every second, otherwise as the shipped configuration says.

    Args:
        folder: where it keeps its files.
        endpoints: of the learner host, as in its endpoints.json.
        hold: takes the place of every rule's ``for``, so that a test need not wait as long as an operator.
        sooner: in every rule's expression, what takes the place of which text, for the same reason.
        alertmanager: ``host:port`` to notify.
        serving_port: of the metrics of an acting service; None: there is no service.
    """
    config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    ports = {"trainer": endpoints["trainer_metrics_port"], "ingest": endpoints["ingest_metrics_port"]}
    for job in config["scrape_configs"]:
        port = {**ports, "serving": serving_port}[job["job_name"].removeprefix("crossborder-")]
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": "learner"}}] if port else []
    if alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    rules = yaml.safe_load((SHIPPED / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = hold or rule["for"]
        for text, other in (sooner or {}).items():
            rule["expr"] = rule["expr"].replace(text, other)
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    with running(
        [*command, f"--storage.tsdb.path={folder / 'data'}"], f"http://{address}/-/ready", folder / "prometheus.log"
    ):
        yield Prometheus(f"http://{address}")


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    """Hands every alert on at once; yields its ``host:port``."""
    config = {
        "route": {"receiver": "webhook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "webhook", "webhook_configs": [{"url": webhook}]}],
    }
    path = folder / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus-alertmanager", f"--config.file={path}", f"--web.listen-address={address}"]
    own = [f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address="]
    with running([*command, *own], f"http://{address}/-/ready", folder / "alertmanager.log"):
        yield address


@contextmanager
def on_call(
    folder: Path, endpoints: Mapping[str, Any], sooner: Mapping[str, str]
) -> Iterator[tuple[Prometheus, queue.Queue[dict[str, Any]]]]:
    """Prometheus, and the alerts that reach whoever is on call for a learner host, by a webhook, after a second."""
    with (
        webhook() as (url, alerts),
        alertmanager(folder, url) as notified,
        prometheus(folder, endpoints, hold="1s", sooner=sooner, alertmanager=notified) as asked,
    ):
        yield asked, alerts


@contextmanager
def webhook() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """Its URL, and the alerts that reach it."""
    alerts: queue.Queue[dict[str, Any]] = queue.Queue(maxsize=1000)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]:
                alerts.put_nowait(alert)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", alerts
        finally:
            server.shutdown()
            thread.join()
