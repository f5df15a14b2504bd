"""``crossborder-health``: asks a learner once whether it serves; the probe of containers."""

from __future__ import annotations

import sys

from actor.client.health import check_health
from common.errors import CrossborderError
from common.process.command import Parser, positive, tell_error
from common.process.log import setup_logging
from common.wire.trust import Trust, add_learner_options, read_trust

EXAMPLES = """\
  crossborder-health --learner localhost:50051 --ca certs/ca.pem
  crossborder-health --learner gpu-host:50051 --ca ca.pem --token-file admin.token    where server.open_health is off
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-health", __doc__, EXAMPLES)
    add_learner_options(made, "the caller")
    made.add_argument(
        "--timeout", type=positive, default=5.0, metavar="SECONDS", help="how long to wait for the answer (default: 5)"
    )
    return made


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = parser().parse_args(argv)
    setup_logging(arguments.log_level, arguments.log_format)
    try:
        check_health(arguments.learner, read_trust(Trust, arguments), arguments.timeout)
    except CrossborderError as error:
        return tell_error("crossborder-health", error, arguments.log_format)
    sys.stdout.write(f"{arguments.learner}: serving\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
