"""Gives a driver its lines by TCP, where its language cannot read standard input: ``dialling.py WORDS...``.

The driver is run with these words and a port of this host, and connects to it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading

SECONDS = 60.0


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        words = [*sys.argv[1:], str(listener.getsockname()[1])]
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=sys.stderr)  # It ends with its connection.
        connection = listener.accept()[0]
    connection.settimeout(None)
    with connection, connection.makefile("rwb", 0) as driver, open(0, "rb", 0) as lines, open(1, "wb", 0) as answers:
        threading.Thread(target=shutil.copyfileobj, args=(driver, answers), daemon=True).start()
        shutil.copyfileobj(lines, driver)


main()
