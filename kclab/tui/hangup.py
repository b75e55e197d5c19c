"""Ending with the terminal: a connection that breaks must not leave a process behind."""

from __future__ import annotations

import os
import select
import signal
from threading import Thread


def end_with_terminal(terminal: int) -> None:
    """From now on this process ends, by SIGHUP, once the terminal at that descriptor is gone.

    The kernel sends that signal to the terminal's own session alone, and a parent may have had it
    ignored (nohup); Textual would then read the end of its input over and over, and wait to draw.
    Called from the main thread. Nothing is tidied up: the app only reads, and no screen is left.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    Thread(target=_watch, args=(terminal,), name="kclab-terminal", daemon=True).start()


def _watch(terminal: int) -> None:
    poll = select.poll()
    poll.register(terminal, 0)  # no event is asked for; a hang-up is told unasked
    ((_, state),) = poll.poll()
    if state & (select.POLLHUP | select.POLLERR):  # else the system cannot poll a terminal
        os.kill(os.getpid(), signal.SIGHUP)
