"""``crossborder-health``: asks a learner once whether it serves; the probe of containers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from actor.client.health import check_health
from actor.trust import Trust
from common.errors import CrossborderError

EXAMPLES = """examples:
  crossborder-health                                            the learner of this host, 127.0.0.1:50051, without TLS
  crossborder-health --ca certs/ca.pem                          the same with TLS
  crossborder-health gpu-host:50051 --ca ca.pem --token-file admin.token    where server.open_health is off

exit codes: docs/exit-codes.md; 0: it serves, 6: it does not"""
FILES = ("ca", "certificate", "key", "token_file")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        "crossborder-health", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "learner",
        nargs="?",
        default="127.0.0.1:50051",
        metavar="HOST:PORT",
        help="where the learner listens (default: 127.0.0.1:50051)",
    )
    for name in FILES:
        text = Trust.model_fields[name].description
        made.add_argument(f"--{name.replace('_', '-')}", type=Path, metavar="FILE", help=text)
    made.add_argument("--insecure", action="store_true", help=Trust.model_fields["insecure"].description)
    made.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="how long to wait (default: 5)")
    return made


def main(argv: list[str] | None = None) -> int:
    """The command; its exit code."""
    arguments = parser().parse_args(argv)
    trust = Trust(insecure=arguments.insecure, **{name: getattr(arguments, name) for name in FILES})
    try:
        check_health(arguments.learner, trust, arguments.timeout)
    except CrossborderError as error:
        sys.stderr.write(f"crossborder-health: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{arguments.learner}: serving\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
