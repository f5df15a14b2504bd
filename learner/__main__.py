"""``python -m learner`` is ``learner-server``, so that ``torchrun -m learner`` can start several ranks."""

from __future__ import annotations

import sys

from common.process.ending import end_in_time
from learner.commands.learner_server import main

if __name__ == "__main__":
    sys.exit(end_in_time(main))
