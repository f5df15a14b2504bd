"""Calls the client in Python as the lines of its input say, under any Python: ``driver.py FOLDER_OF_THE_CLIENT``.

Each line is JSON: ``call`` names a method of the session, or ``open``, or ``get`` an attribute; the other keys are
arguments. A line of output answers each: ``result``, or ``error`` and ``message``.
"""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import sys
import time
from typing import Any

sys.path.insert(0, sys.argv[1])
from crossborder_client import RefusedError, Session

time.time = itertools.count(0.0, 3600.0).__next__  # The wall clock jumps whenever one looks at it; no client may mind.


def restore(value: Any) -> Any:
    """The value in which ``{"bytes": TEXT}`` stands for bytes, and ``{"float": TEXT}`` for NaN or infinity."""
    if isinstance(value, dict) and list(value) == ["float"]:
        return float(value["float"])
    if isinstance(value, dict):
        found = {key: restore(part) for key, part in value.items()}
        return base64.b64decode(found["bytes"]) if list(found) == ["bytes"] else found
    return [restore(part) for part in value] if isinstance(value, list) else value


def call(session: Session, name: str, given: dict[str, Any]) -> Any:
    if name == "get":
        return getattr(session, given["attribute"])
    return getattr(session, name)(**restore(given))


def main() -> None:
    session: Any = None
    for line in sys.stdin:
        given = json.loads(line)
        name = given.pop("call")
        try:
            if name == "open":
                ca = given.pop("ca", None)
                tls = ssl.create_default_context(cafile=ca) if ca else None
                session, result = Session(tls=tls, **given), None
            else:
                result = call(session, name, given)
            answer = {"result": result}
        except RefusedError as error:
            answer = {"error": error.name, "message": str(error)}
        except (OSError, ValueError) as error:
            kind = "out_of_reach" if isinstance(error, OSError) else "bad_argument"
            answer = {"error": kind, "message": str(error)}
        print(json.dumps(answer), flush=True)


main()
