"""The words that stand for a Ray cluster. Every command reads them: this loads next to nothing."""

from __future__ import annotations

import re

from kclab.core.errors import BadUsage

AUTO = "auto"
"""The cluster that runs here or that `RAY_ADDRESS` names; one of our own where there is none."""
LOCAL = "local"
"""Always one of our own."""
ADDRESS = re.compile(r"(?P<client>ray://)?(?P<host>[\w.\-]+|\[[\da-fA-F:]+\]):(?P<port>\d{1,5})")


def is_address(text: str) -> bool:
    """Whether a word stands for a cluster: `auto`, `local`, `HOST:PORT` or `ray://HOST:PORT`."""
    return text in (AUTO, LOCAL) or ADDRESS.fullmatch(text) is not None


def parse_address(text: str) -> str:
    """The address, stripped. Raises BadUsage for what can be none, and for Ray's client."""
    address = text.strip()
    if not is_address(address):
        raise BadUsage(f"--ray {text}: write the address as HOST:PORT, or auto, or local.")
    if address.startswith("ray://"):
        raise BadUsage(
            f"--ray {text}: kclab does not go through Ray's client; run it on a node of the"
            " cluster (`ray start --address=HOST:PORT` makes this machine one) and write HOST:PORT."
        )
    return address
