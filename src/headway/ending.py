"""Which signals ask a process of Headway to end in order."""

from __future__ import annotations

import signal


def asking_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, Ctrl-C, and the hang-up of a terminal that is closed; under `nohup` that is ignored, and stays so."""
    asking = (signal.SIGTERM, signal.SIGINT)
    return asking if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asking, signal.SIGHUP)
