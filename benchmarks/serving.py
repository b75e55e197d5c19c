"""Capture's cost on a served engine: both runtimes of the real SGLang, with tiny models.

Two servers that differ in nothing can differ by some per cent in speed for as long as they live,
since where a process's memory lies is decided once. So all of them are started anew several times,
and a second server without the plugin shows what such a difference is worth.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.engines import (
    IMAGES,
    LANGUAGE,
    PROGRAM,
    Served,
    Server,
    Servers,
    all_servers,
    write_model,
)
from benchmarks.measure import BASELINE, KCLAB, Result, paired
from kclab.capture.control import ControlFolder
from kclab.capture.coverage import STORING, WATCHING, own_time_us
from kclab.capture.options import CaptureOptions
from kclab.capture.orders import Orders
from kclab.capture.service import make_plan
from kclab.capture.settle import settle
from kclab.core.stats import Sample, median, round_ratios
from kclab.core.times import now_us
from kclab.db.migrate import ensure_current
from kclab.db.runs import run
from kclab.db.store import Store
from kclab.serving.job import prepare
from kclab.serving.server import attached
from kclab.serving.workers import Workers

ARM_SECONDS = 60.0
SETTLE_SECONDS = 0.3
"""For the writer of the request before."""
NEVER = 10**9
"""A step that no request has."""


def serving(folder: Path, starts: int, pairs: int, captures: int) -> Iterator[Result]:
    """All comparisons; nothing where the engine's environment is not set up."""
    if not PROGRAM.is_file():
        print("serving: left out, there is no .venv-sglang (make test-engines)", file=sys.stderr)
        return
    for served in (LANGUAGE, IMAGES):
        yield from of_one(served, folder / served.kind, starts, pairs, captures)


def of_one(
    served: Served, folder: Path, starts: int, pairs: int, captures: int
) -> Iterator[Result]:
    """A runtime's comparisons: `pairs` at each start, `captures` at the last."""
    model = write_model(served, folder)
    comparisons: dict[str, list[Result]] = {}
    for turn in range(starts):
        with all_servers(served, model, folder / f"start-{turn}", turn) as servers:
            for result in unselected(servers, served.kind, pairs):
                comparisons.setdefault(result.name, []).append(result)
            if turn == starts - 1:
                captured = selected(servers, f"{served.kind} served, one step captured", captures)
    yield from map(joined, comparisons.values())
    yield captured


def unselected(servers: Servers, kind: str, pairs: int) -> Iterator[Result]:
    """What nobody wants captured must cost nothing."""
    yield against(servers, servers.other, f"{kind} served, a second one without the plugin", pairs)
    yield against(servers, servers.kclab, f"{kind} served, plugin installed, no capture", pairs)
    with capture(servers, "idle", NEVER) as (_, orders), active(orders, "benchmark"):
        name = f"{kind} served, plugin armed, no step selected"
        yield against(servers, servers.kclab, name, pairs)


def against(servers: Servers, server: Server, name: str, pairs: int) -> Result:
    """A server and the one without the plugin in turn, as they are now."""
    return paired(
        name,
        "server without the plugin",
        "control" if server is servers.other else "≥ 0.98",
        lambda: servers.ask(servers.plain),
        lambda: servers.ask(server),
        pairs=pairs,
        warm_up=5,
    )


def joined(parts: list[Result]) -> Result:
    """One comparison at several starts, as one; each start's median ratio is in its detail."""
    whole = Result(parts[0].name, parts[0].baseline, parts[0].target)
    medians = []
    for part in parts:
        first = len(whole.samples) // 2
        whole.samples += [replace(s, round=s.round + first) for s in part.samples]
        medians.append(median(round_ratios(part.samples, BASELINE, KCLAB)))
    whole.detail = {"starts": medians}
    print(f"  {whole.name}: starts " + " ".join(f"{ratio:.3f}" for ratio in sorted(medians)))
    return whole


def selected(servers: Servers, name: str, rounds: int) -> Result:
    """A request with one step captured, against one without: what kclab says that it cost.

    A ratio near 1 says that stall, watching and storing together tell the whole cost.
    """
    result = Result(name, "nothing captured, plus what kclab tells", "≈ 1")
    with servers.alone(servers.kclab), capture(servers, "selected", 0) as (told, orders):
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
    cost, plain, extra = told(), median(result.times(BASELINE)), _extra(result)
    result.samples = [
        replace(s, ms=s.ms + cost.total_ms) if s.arm == BASELINE else s for s in result.samples
    ]
    result.detail = {"plain_ms": plain, "extra_ms": extra, **asdict(cost)}
    print(
        f"  {name}: {extra:.1f} ms more than {plain:.1f}; stall in receipts {cost.stall_ms:.1f} "
        f"ms, watching {cost.watch_ms:.1f} ms, storing {cost.store_ms:.1f} ms; "
        f"{cost.captures:.0f} captures"
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
    store_ms: float
    """CPU time of the writer's thread, in the same place."""

    @property
    def total_ms(self) -> float:
        """All of it."""
        return self.stall_ms + self.watch_ms + self.store_ms


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
    wanted = CaptureOptions(adapters=(), steps=(step,), define_missing=True)
    options = replace(servers.options(), capture=wanted)
    with run(store, "benchmark", {}) as running:
        control = ControlFolder.of(store.database, running.uuid)
        control.create()
        plan = make_plan(store, prepare(options).capture, ["sglang"], running, control)
        with attached(options, replace(plan, served=True).save()) as server:
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
        watching = own_time_us(connection, run_id, WATCHING)
        storing = own_time_us(connection, run_id, STORING)
    per_request = (us / requests / 1e3 for us in (stall, watching, storing))
    return Told(captures / requests, *per_request)
