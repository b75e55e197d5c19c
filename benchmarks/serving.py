"""Capture's cost on a served engine: the real SGLang with a tiny language model, on this CPU.

Two servers run beside each other, one without the plugin and one with it, and are asked in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import BASELINE, KCLAB, Result, paired, seconds
from kclab.capture.control import ControlFolder
from kclab.capture.orders import Orders
from kclab.capture.service import CaptureOptions, make_plan
from kclab.capture.sglang_plugin import ATTACH_VARIABLE
from kclab.core.errors import EngineFailed
from kclab.core.stats import Sample, median
from kclab.core.times import now_us
from kclab.db.migrate import ensure_current
from kclab.db.runs import run
from kclab.db.store import Store
from kclab.serving import ServeOptions, capture_serve
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
CASE = Case("small", Kind.COMPLETION, "The three laws of thermodynamics", max_tokens=4)
CASES = "".join(
    f'[[case]]\nname = "{name}"\nkind = "completion"\nprompt = "{CASE.prompt}"\nmax_tokens = 4\n'
    for name in ("first", CASE.name)
)
"""The first bears what a process does once: definitions are made, weights are hashed."""
ARM_SECONDS = 60.0
START_SECONDS = 300.0
REQUEST_SECONDS = 120.0
NEVER = 10**9
"""A step that no request has."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Both servers, healthy and warm."""

    plain: Client
    kclab: Client
    model: Path
    attach: Path
    folder: Path

    def ask(self, client: Client) -> float:
        """Seconds of one small completion."""
        payload = payload_of(CASE, self.model.name, None)

        def post() -> None:
            reply = client.post(ENDPOINTS[CASE.kind], payload, None, lambda: None)
            if not reply.ok:
                raise EngineFailed(f"{client.url}: HTTP {reply.status}: {reply.text[:200]}")

        return seconds(post)

    def options(self, **more: object) -> ServeOptions:
        """A capture from the server with the plugin."""
        options = ServeOptions(self.model, port=PORTS[1], replay=False)
        given = {"attach": self.kclab.url, "attach_folder": self.attach, **more}
        return replace(options, **given)  # type: ignore[arg-type]  # the fields' own types

    def store(self, name: str) -> Store:
        """A store of its own for one capture."""
        store = Store.at(self.folder / name / "kclab.db")
        store.database.parent.mkdir(parents=True)
        ensure_current(store.database)
        return store


def serving(folder: Path, pairs: int, captures: int) -> Iterator[Result]:
    """Both comparisons; nothing where the engine's environment is not set up."""
    if not PROGRAM.is_file():
        print("serving: left out, there is no .venv-sglang (make test-engines)", file=sys.stderr)
        return
    with both_servers(folder) as servers:
        yield nothing_selected(servers, pairs)
        yield selected(servers, captures)


def nothing_selected(servers: Servers, pairs: int) -> Result:
    """A capture is attached and its request under way, but no step of it is selected."""
    with armed(servers):
        return paired(
            "served request, plugin armed, no step selected",
            "server without the plugin",
            "≥ 0.98",
            lambda: servers.ask(servers.plain),
            lambda: servers.ask(servers.kclab),
            pairs=pairs,
            warm_up=10,
        )


def selected(servers: Servers, rounds: int) -> Result:
    """One step of a request is captured: its time, against the plain one plus the receipts' stall.

    A ratio near 1 says that the receipts tell the whole cost.
    """
    result = Result(
        "served request, one step captured", "without the plugin, plus the receipts' stall", "≈ 1"
    )
    plain, captured, stalls = [], [], []
    facts: dict[str, object] = {}
    for number in range(rounds):
        servers.ask(servers.plain)
        plain.append(servers.ask(servers.plain) * 1e3)
        taken, stall, facts = capture_once(servers, f"selected-{number}")
        captured.append(taken)
        stalls.append(stall)
        result.samples += [
            Sample(number, 0, BASELINE, plain[-1] + stall),
            Sample(number, 1, KCLAB, taken),
        ]
    extra = median([b - a for a, b in zip(plain, captured, strict=True)])
    result.detail = {**facts, "extra_ms": extra, "stall_ms": median(stalls)}
    print(f"  one step captured: {extra:.1f} ms more, stall {median(stalls):.1f} ms, {facts}")
    return result


def capture_once(servers: Servers, name: str) -> tuple[float, float, dict[str, object]]:
    """(ms, ms of stall in its receipts, what was captured) of the second request's step 0."""
    store = servers.store(name)
    cases = servers.folder / "cases.toml"
    cases.write_text(CASES)
    capture = CaptureOptions(adapters=(), steps=(0,), define_missing=True)
    capture_serve(store, servers.options(case_file=cases, capture=capture))
    with closing(store.read()) as connection:
        taken, stall, captures = connection.execute(
            "SELECT r.finished_us - r.started_us, sum(json_extract(c.receipt, '$.stall_us')),"
            " count(*) FROM request r JOIN capture c ON c.request_pk = r.id"
            " WHERE r.request_id = ?",
            (CASE.request_id,),
        ).fetchone()
        (nbytes,) = connection.execute("SELECT sum(nbytes) FROM blob").fetchone()
    return taken / 1e3, stall / 1e3, {"captures": captures, "bytes": nbytes}


@contextmanager
def armed(servers: Servers) -> Iterator[None]:
    """A request of an attached capture is under way, and selects nothing."""
    store = servers.store("armed")
    options = servers.options()
    architecture = read_model(servers.model).root
    capture = CaptureOptions(adapters=("torch",), root=architecture, steps=(NEVER,))
    with run(store, "benchmark", {}) as active:
        control = ControlFolder.of(store.database, active.uuid)
        control.create()
        plan = replace(make_plan(store, capture, ["sglang"], active, control), served=True)
        with attached(options, plan.save()) as server:
            Workers(control, server.family).require_armed(lambda: None, ARM_SECONDS)
            Orders(control.path).activate("benchmark", {}, {}, now_us())
            yield
        control.remove()


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
    plain = {**environment, "SGLANG_PLUGINS": "none"}
    with_plugin = {**environment, ATTACH_VARIABLE: str(attach)}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(start(model, port, variables, folder / f"{port}.log"))
            for port, variables in zip(PORTS, (plain, with_plugin), strict=True)
        ]
        clients = [Client(f"http://127.0.0.1:{port}", REQUEST_SECONDS) for port in PORTS]
        for client, process in zip(clients, processes, strict=True):
            client.wait_until_healthy(START_SECONDS, watch(process))
        yield Servers(*clients, model, attach, folder)


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
