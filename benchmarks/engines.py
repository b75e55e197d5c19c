"""Servers of the real SGLang with a tiny model on this CPU: two without kclab, one with it.

SGLang's schedulers spin while they have nothing to do, so whichever server is not asked is stopped
(SIGSTOP) meanwhile: two of them on two cores would measure each other.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import seconds
from kclab.capture.sglang_plugin import ATTACH_VARIABLE
from kclab.core.errors import EngineFailed
from kclab.core.stats import median
from kclab.serving import ServeOptions
from kclab.serving.cases import Case, Kind
from kclab.serving.command import server_command
from kclab.serving.model import read_model
from kclab.serving.payloads import ENDPOINTS, payload_of
from kclab.serving.process import EngineProcess
from kclab.serving.requests import Client

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / ".venv-sglang" / "bin" / "sglang"
ENGINE_TESTS = ROOT / "tests" / "engines"
PORTS = 31_400, 31_500, 31_600
ASKED = 3
"""Requests of which a sample is the median, after one that is not timed."""
START_SECONDS = 300.0
REQUEST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Served:
    """What is served, and what it is asked."""

    kind: str
    """Of the engines' tests' tiny models."""
    case: Case
    arguments: tuple[str, ...] = ()
    """More of the engine's own options."""


LANGUAGE = Served(
    "qwen3",
    Case(
        "small",
        Kind.COMPLETION,
        "The three laws of thermodynamics",
        max_tokens=8,
        payload={"ignore_eos": True},
    ),
    (
        *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "bfloat16"),
        *("--disable-radix-cache", "--disable-overlap-schedule"),
        *("--mem-fraction-static", "0.1", "--max-total-tokens", "2048"),
        *("--max-running-requests", "4", "--context-length", "1024"),
        *("--chunked-prefill-size", "512", "--sampling-backend", "pytorch"),
        *("--grammar-backend", "none"),
    ),
)
IMAGES = Served("qwen-image", Case("small", Kind.IMAGE, "A red teapot.", size="128x128"))


@dataclass(frozen=True, slots=True)
class Server:
    """One of the two."""

    served: Served
    model: Path
    client: Client
    process: EngineProcess

    def wait(self) -> None:
        """Until it is healthy; raises EngineFailed when it dies before."""

        def watch() -> None:
            self.process.require_alive("before it was ready")

        self.client.wait_until_healthy(START_SECONDS, watch)

    def ask(self) -> float:
        """Seconds of one request."""
        model, case = read_model(self.model), self.served.case
        steps = None if model.sigmas is None else len(model.sigmas)
        payload = payload_of(case, model.served_name, steps)

        def post() -> None:
            reply = self.client.post(ENDPOINTS[case.kind], payload, None, lambda: None)
            if not reply.ok:
                raise EngineFailed(f"{self.client.url}: HTTP {reply.status}: {reply.text[:200]}")

        return seconds(post)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """None of its processes runs inside."""
        family = self.process.family()
        for process in family:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in family:
                process.send_signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Servers:
    """All three, healthy."""

    plain: Server
    other: Server
    """Without kclab too: how far it is from `plain` is what two equal servers differ by."""
    kclab: Server
    attach: Path
    folder: Path

    @contextmanager
    def alone(self, server: Server) -> Iterator[None]:
        """Only this one's processes run inside."""
        with ExitStack() as stack:
            for each in (self.plain, self.other, self.kclab):
                if each is not server:
                    stack.enter_context(each.stopped())
            yield

    def ask(self, server: Server) -> float:
        """Seconds of a warm request to one server, the others being stopped."""
        with self.alone(server):
            server.ask()
            return median([server.ask() for _ in range(ASKED)])

    def options(self) -> ServeOptions:
        """A capture from the server with the plugin."""
        return ServeOptions(
            self.kclab.model,
            attach=self.kclab.client.url,
            attach_folder=self.attach,
            replay=False,
        )


def write_model(served: Served, folder: Path) -> Path:
    """The tiny model, in a folder of its own."""
    model = folder / served.kind
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [PROGRAM.with_name("python"), ENGINE_TESTS / "models.py", served.kind, model],
        check=True,
        env=engine_environment(),
        timeout=START_SECONDS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return model


@contextmanager
def all_servers(served: Served, model: Path, folder: Path, turn: int) -> Iterator[Servers]:
    """Start them, each in another place of the order at each turn, and end what they started."""
    folder.mkdir()
    attach = folder / "attach"
    without = {"SGLANG_PLUGINS": "none"}
    variables = {"plain": without, "other": without, "kclab": {ATTACH_VARIABLE: str(attach)}}
    names = sorted(variables)
    started: dict[str, Server] = {}
    with ExitStack() as stack:
        for place, port in enumerate(PORTS):
            name = names[(place + turn) % len(names)]
            environment = {**engine_environment(), **variables[name]}
            log = folder / f"{name}.log"
            started[name] = start(stack, served, model, port, environment, log)
        for server in started.values():
            server.wait()
        yield Servers(attach=attach, folder=folder, **started)


def start(
    stack: ExitStack,
    served: Served,
    model: Path,
    port: int,
    environment: dict[str, str],
    log: Path,
) -> Server:
    """A server, started as `kclab capture serve` starts it; `stack` ends it."""
    options = ServeOptions(
        model, port=port, executable=str(PROGRAM), engine_arguments=served.arguments
    )
    command = server_command(read_model(model), options, log.parent)
    process = stack.enter_context(EngineProcess(command, environment, log, grace=5.0))
    return Server(served, model, Client(f"http://127.0.0.1:{port}", REQUEST_SECONDS), process)


def engine_environment() -> dict[str, str]:
    """SGLang on a CPU: the stand-ins of the engines' tests, and never the network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KCLAB_")}
    return {
        **kept,
        "SGLANG_USE_CPU_ENGINE": "1",
        "TRITON_INTERPRET": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ENGINE_TESTS / "shim"),
    }
