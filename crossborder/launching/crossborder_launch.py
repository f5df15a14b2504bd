"""``crossborder-launch``: starts a learner and its actors on several hosts by ssh, and ends them together."""

from __future__ import annotations

import argparse
import shlex

from common.process.command import Parser, as_path, service_of
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from crossborder.launching.hosts_config import load_hosts
from crossborder.launching.launcher import Launcher

EXAMPLES = """\
  crossborder-launch hosts.yaml             a learner and its actors, until training ends or Ctrl-C
  crossborder-launch hosts.yaml --show      the ssh commands that it would start, one a line

Certificates and tokens are expected on the hosts: docs/clusters.md. The same command again goes on with the run.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-launch", __doc__, EXAMPLES)
    made.add_value("hosts", "FILE", "the YAML file that names the hosts: docs/clusters.md", as_path)
    made.add_flag("--show", "check the file, print the ssh commands, and exit")
    return made


def _launch(arguments: argparse.Namespace, signals: StopSignals) -> None:
    launcher = Launcher(load_hosts(arguments.hosts), arguments.log_level)
    if arguments.show:
        answers().write("".join(f"{shlex.join(words)}\n" for words in launcher.commands()))
    else:
        signals.on_stop = launcher.stop
        launcher.run()


main = service_of(parser, _launch)
