"""Log lines that cannot be written."""

from __future__ import annotations

import subprocess
import sys


def test_a_log_that_nobody_can_read_or_that_finds_no_room_does_not_end_the_work() -> None:
    code = "from headway.logs import log; log('told'); log('told again', level='error'); open('/dev/stdout', 'w').write('done')"
    with open("/dev/full", "w") as full:
        said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert said.stdout == "done"
    pipe = subprocess.PIPE
    piped = subprocess.Popen([sys.executable, "-c", f"input(); {code}"], stdin=pipe, stdout=pipe, stderr=pipe)
    assert piped.stderr is not None
    piped.stderr.close()
    piped.stderr = None
    assert piped.communicate(b"\n", timeout=120)[0] == b"done"
