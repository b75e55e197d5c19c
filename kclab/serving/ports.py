"""The ports that a server takes: whether they are free, and if not, who has them."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

import psutil

from kclab.core.errors import BadUsage, EnvironmentLacking

LARGEST = 65_535
ADDRESSES = ("127.0.0.1", "0.0.0.0")
"""Servers bind the loopback or the wildcard; either is refused while another holds the port."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port, and what the engine uses it for."""

    number: int
    purpose: str


def server_ports(port: int) -> tuple[Port, ...]:
    """SGLang's ports for `--port`; raises BadUsage where they are no port numbers.

    The broker of the diffusion runtime takes `port + 1` by itself; the others are options.
    """
    ports = (
        Port(port, "HTTP"),
        Port(port + 1, "broker"),
        Port(port + 20, "scheduler"),
        Port(port + 21, "master"),
    )
    if port < 1 or ports[-1].number > LARGEST:
        raise BadUsage(f"--port {port}: SGLang takes ports up to {ports[-1].number}; choose lower.")
    return ports


def require_free(ports: tuple[Port, ...]) -> None:
    """Raise EnvironmentLacking naming each port that is taken, and by which process."""
    taken = [port for port in ports if not _is_free(port.number)]
    if taken:
        named = "; ".join(f"{p.number} ({p.purpose}){_holder(p.number)}" for p in taken)
        raise EnvironmentLacking(f"port in use: {named}. Choose another with --port.")


def _is_free(number: int) -> bool:
    for address in ADDRESSES:
        with socket.socket() as probe:
            # Without it, connections of a server that ended a minute ago would count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, number))
            except OSError:
                return False
    return True


def _holder(number: int) -> str:
    """Who listens there, where we may know."""
    process = listener(number)
    return "" if process is None else f" by {process.name()}, process {process.pid}"


def listener(number: int) -> psutil.Process | None:
    """The process that listens on a port, as far as the system tells us."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == number:
                return psutil.Process(connection.pid) if connection.pid else None
    return None
