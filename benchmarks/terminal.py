"""A program in a pseudo-terminal: keys go in, and what it draws is waited for."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from contextlib import suppress

TOO_LONG_S = 60.0

KEYS = {
    "up": b"\x1b[A",
    "down": b"\x1b[B",
    "home": b"\x1b[H",
    "end": b"\x1b[F",
    "pagedown": b"\x1b[6~",
    "enter": b"\r",
    "escape": b"\x1b",
}


class Terminal:
    """A started program; `with` ends it."""

    def __init__(self, argv: Sequence[str], width: int = 80, height: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.began = time.perf_counter()
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self._process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.drawn = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._master >= 0:
            os.close(self._master)

    def press(self, key: str) -> float:
        """Send a key; when it was sent."""
        self.drawn = b""
        began = time.perf_counter()
        os.write(self._master, KEYS.get(key, key.encode()))
        return began

    def seconds_until(self, text: str, began: float) -> float:
        """Seconds from `began` until `text` is drawn."""
        while text.encode() not in self.drawn:
            self._read(TOO_LONG_S - (time.perf_counter() - began))
        return time.perf_counter() - began

    def settle(self, seconds: float = 0.3) -> None:
        """Read until nothing was drawn for so long."""
        while select.select([self._master], [], [], seconds)[0]:
            self._read(seconds)

    def exit_code(self) -> int:
        """What the program ends with; it is waited for."""
        with suppress(EOFError):
            while True:
                self._read(TOO_LONG_S)
        return self._process.wait()

    def hang_up(self) -> int:
        """Take the terminal away; what the program ends with then."""
        os.close(self._master)
        self._master = -1
        return self._process.wait(TOO_LONG_S)

    def _read(self, seconds: float) -> None:
        if not select.select([self._master], [], [], max(seconds, 0))[0]:
            raise TimeoutError(f"nothing drawn any more; the last was {self.drawn[-400:]!r}")
        try:
            self.drawn += os.read(self._master, 1 << 16)
        except OSError as error:  # Linux's way to say that the other end is closed
            raise EOFError(f"the program has ended; the last was {self.drawn[-400:]!r}") from error
