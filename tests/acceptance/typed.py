"""`sharecoord` as a page tells to type it: a coordinator that serves is stopped again.

It takes free ports unless the page names some, and writes its ready file into the present folder.
A coordinator that the page puts into the background (`BACKGROUND`) runs until the page stops it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from sharecoord.cli.main import main

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
BACKGROUND = "TYPED_IN_BACKGROUND"
"""The variable that is set for commands which end with `&`."""


def serve() -> int:
    """Starts a coordinator, waits until it serves, stops it; returns its exit code."""
    ready = Path("ready")
    ready.unlink(missing_ok=True)
    own = {
        "SHARECOORD_LISTEN__ADDRESS": "127.0.0.1:0",
        "SHARECOORD_MANAGEMENT__PORT": "0",
        "SHARECOORD_LISTEN__READY_FILE": str(ready.resolve()),
    }
    command = [sys.executable, "-c", "from sharecoord.cli.main import main; main()", *sys.argv[1:]]
    if BACKGROUND in os.environ:
        os.execve(command[0], command, os.environ | own)
    with subprocess.Popen(command, env=os.environ | own) as process:
        end_s = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None and not ready.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        process.terminate()
        return process.wait(STOP_TIMEOUT_S)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve())
    main()
