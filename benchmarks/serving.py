"""Capture's cost on a served engine: the real SGLang with a tiny language model, on this CPU.

Two servers, one without the plugin and one with it, are asked in turn. SGLang's schedulers spin
while they have nothing to do, so whichever is not asked is stopped (SIGSTOP) meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.measure import BASELINE, KCLAB, Result, paired, seconds
from kclab.capture.control import ControlFolder
from kclab.capture.coverage import watching_us
from kclab.capture.orders import Orders
from kclab.capture.service import CaptureOptions, make_plan
from kclab.capture.settle import settle
from kclab.capture.sglang_plugin import ATTACH_VARIABLE
from kclab.core.errors import EngineFailed
from kclab.core.stats import Sample, median
from kclab.core.times import now_us
from kclab.db.migrate import ensure_current
from kclab.db.runs import run
from kclab.db.store import Store
from kclab.serving import ServeOptions
from kclab.serving.cases import Case, Kind
from kclab.serving.command import server_command
from kclab.serving.model import read_model
from kclab.serving.payloads import ENDPOINTS, payload_of
from kclab.serving.process import EngineProcess
from kclab.serving.requests import Client
from kclab.serving.server import attached
from kclab.serving.workers import Workers

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / ".venv-sglang" / "bin" / "sglang"
ENGINE_TESTS = ROOT / "tests" / "engines"
PORTS = 31_400, 31_500
ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "bfloat16"),
    *("--disable-radix-cache", "--disable-overlap-schedule"),
    *("--mem-fraction-static", "0.1", "--max-total-tokens", "2048"),
    *("--max-running-requests", "4", "--context-length", "1024", "--chunked-prefill-size", "512"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none"),
)
CASE = Case(
    "small",
    Kind.COMPLETION,
    "The three laws of thermodynamics",
    max_tokens=8,
    payload={"ignore_eos": True},
)
ASKED = 3
"""Requests of which a sample is the median, after one that is not timed."""
ARM_SECONDS = 60.0
START_SECONDS = 300.0
REQUEST_SECONDS = 120.0
SETTLE_SECONDS = 0.3
"""For the writer of the request before."""
NEVER = 10**9
"""A step that no request has."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One of the servers."""

    client: Client
    process: EngineProcess

    def ask(self) -> float:
        """Seconds of one small completion."""
        payload = payload_of(CASE, "qwen3", None)

        def post() -> None:
            reply = self.client.post(ENDPOINTS[CASE.kind], payload, None, lambda: None)
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
    """Both servers, healthy."""

    plain: Asked
    kclab: Asked
    model: Path
    attach: Path
    folder: Path

    def ask(self, server: Asked) -> float:
        """Seconds of a warm completion by one server, the other being stopped."""
        other = self.plain if server is self.kclab else self.kclab
        with other.stopped():
            server.ask()
            return median([server.ask() for _ in range(ASKED)])

    def pairs(self, name: str, pairs: int) -> Result:
        """Both servers in turn, as they are now."""
        return paired(
            name,
            "server without the plugin",
            "≥ 0.98",
            lambda: self.ask(self.plain),
            lambda: self.ask(self.kclab),
            pairs=pairs,
            warm_up=5,
        )

    def options(self) -> ServeOptions:
        """A capture from the server with the plugin."""
        url = self.kclab.client.url
        return ServeOptions(self.model, attach=url, attach_folder=self.attach, replay=False)


def serving(folder: Path, pairs: int, captures: int) -> Iterator[Result]:
    """All comparisons; nothing where the engine's environment is not set up."""
    if not PROGRAM.is_file():
        print("serving: left out, there is no .venv-sglang (make test-engines)", file=sys.stderr)
        return
    with both_servers(folder) as servers:
        yield servers.pairs("served request, plugin installed, no capture", pairs)
        with capture(servers, "idle", NEVER) as (_, orders), active(orders, "benchmark"):
            yield servers.pairs("served request, plugin armed, no step selected", pairs)
        yield selected(servers, captures)


def selected(servers: Servers, rounds: int) -> Result:
    """A request with one step captured, against one without: what kclab says that it cost.

    A ratio near 1 says that stall and watching together tell the whole cost.
    """
    result = Result(
        "served request, one step captured", "nothing captured, plus what kclab tells", "≈ 1"
    )
    with servers.plain.stopped(), capture(servers, "selected", 0) as (told, orders):
        with active(orders, "first"):  # definitions are made, weights hashed
            servers.kclab.ask()
        for number in range(rounds):
            arms = (BASELINE, KCLAB) if number % 2 == 0 else (KCLAB, BASELINE)
            for position, arm in enumerate(arms):
                time.sleep(SETTLE_SECONDS)
                servers.kclab.ask()
                with active(orders, f"round-{number}") if arm == KCLAB else nullcontext():
                    taken = servers.kclab.ask()
                result.samples.append(Sample(number, position, arm, taken * 1e3))
    plain, extra = median(result.times(BASELINE)), _extra(result)
    cost = told()
    result.samples = [
        replace(s, ms=s.ms + cost.stall_ms + cost.watch_ms) if s.arm == BASELINE else s
        for s in result.samples
    ]
    result.detail = {"plain_ms": plain, "extra_ms": extra, **asdict(cost)}
    print(
        f"  one step captured: {extra:.1f} ms more than {plain:.1f}; stall in receipts "
        f"{cost.stall_ms:.1f} ms, watching {cost.watch_ms:.1f} ms; {cost.captures:.0f} captures"
    )
    return result


def _extra(result: Result) -> float:
    pairs = zip(result.times(BASELINE), result.times(KCLAB), strict=True)
    return median([ours - plain for plain, ours in pairs])


@dataclass(frozen=True, slots=True)
class Told:
    """What a run says about a request of it, on average."""

    captures: float
    stall_ms: float
    """In its receipts."""
    watch_ms: float
    """In the run's coverage."""


@contextmanager
def active(orders: Orders, request: str) -> Iterator[None]:
    """A request of the capture is under way."""
    orders.activate(request, {}, {}, now_us())
    try:
        yield
    finally:
        orders.deactivate()


@contextmanager
def capture(servers: Servers, name: str, step: int) -> Iterator[tuple[Callable[[], Told], Orders]]:
    """A capture of one step of each request is attached; what it told, to be asked at its end."""
    store = Store.at(servers.folder / name / "kclab.db")
    store.database.parent.mkdir(parents=True)
    ensure_current(store.database)
    root = read_model(servers.model).root
    options = CaptureOptions(adapters=("torch",), root=root, steps=(step,), define_missing=True)
    with run(store, "benchmark", {}) as running:
        control = ControlFolder.of(store.database, running.uuid)
        control.create()
        plan = replace(make_plan(store, options, ["sglang"], running, control), served=True)
        with attached(servers.options(), plan.save()) as server:
            workers = Workers(control, server.family)
            workers.require_armed(lambda: None, ARM_SECONDS)
            yield lambda: _told(store, running.id), Orders(control.path)
            workers.drain(lambda: None)
        settle(running.connection, running.id, control)
        control.remove()


def _told(store: Store, run_id: int) -> Told:
    with closing(store.read()) as connection:
        requests, captures, stall = connection.execute(
            "SELECT count(DISTINCT request_pk), count(*), sum(stall_us) FROM capture"
            " WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        watching = watching_us(connection, run_id)
    return Told(captures / requests, stall / requests / 1e3, watching / requests / 1e3)


@contextmanager
def both_servers(folder: Path) -> Iterator[Servers]:
    """Start both, and end them with all that they started."""
    folder.mkdir(parents=True, exist_ok=True)
    model, attach = folder / "qwen3", folder / "attach"
    python = PROGRAM.with_name("python")
    environment = engine_environment()
    subprocess.run(
        [python, ENGINE_TESTS / "models.py", "qwen3", model],
        check=True,
        env=environment,
        timeout=START_SECONDS,
        stdout=subprocess.DEVNULL,
    )
    without = {**environment, "SGLANG_PLUGINS": "none"}
    with_plugin = {**environment, ATTACH_VARIABLE: str(attach)}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(start(model, port, variables, folder / f"{port}.log"))
            for port, variables in zip(PORTS, (without, with_plugin), strict=True)
        ]
        clients = [Client(f"http://127.0.0.1:{port}", REQUEST_SECONDS) for port in PORTS]
        for client, process in zip(clients, processes, strict=True):
            client.wait_until_healthy(START_SECONDS, watch(process))
        plain, kclab = map(Asked, clients, processes)
        yield Servers(plain, kclab, model, attach, folder)


def start(model: Path, port: int, environment: dict[str, str], log: Path) -> EngineProcess:
    """A server, as `kclab capture serve` starts it."""
    options = ServeOptions(model, port=port, executable=str(PROGRAM), engine_arguments=ON_CPU)
    command: Sequence[str] = server_command(read_model(model), options, log.parent)
    return EngineProcess(command, environment, log, grace=5.0)


def watch(process: EngineProcess) -> Callable[[], None]:
    """Raises once the server has died."""
    return lambda: process.require_alive("before it was ready")


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
