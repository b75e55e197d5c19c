"""SGLang's own two dumps, written by the real SGLang, imported and replayed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kclab.dataset.dumps.kinds import DumpKind, dump_kind
from kclab.dataset.importing import import_path
from kclab.dataset.options import ImportOptions
from kclab.db.store import Store
from kclab.replay import Options, Selection, replay
from kclab.serving import ServeOptions
from kclab.serving.cases import Case, Kind
from kclab.serving.command import server_command
from kclab.serving.model import read_model
from kclab.serving.payloads import ENDPOINTS, payload_of
from kclab.serving.process import EngineProcess
from kclab.serving.requests import Client
from tests.engines.conftest import LLM_ON_CPU, Write
from tests.serving.conftest import free_port

pytestmark = pytest.mark.engines

TOKENS = 3
LAYERS = 2
LINEARS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@dataclass(frozen=True)
class Dumps:
    """What one server left of one short completion."""

    model: Path
    dumper: Path
    passes: Path


@pytest.fixture(scope="module")
def dumps(model: Write, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dumps]:
    folder, port = tmp_path_factory.mktemp("dumps"), free_port()
    made = Dumps(model("qwen3"), folder / "dumper", folder / "passes")
    arguments = (*LLM_ON_CPU, "--debug-tensor-dump-output-folder", str(made.passes))
    options = ServeOptions(made.model, port=port, engine_arguments=arguments)
    environment = {
        **os.environ,
        "SGLANG_PLUGINS": "none",
        "DUMPER_ENABLE": "1",
        "DUMPER_DIR": str(made.dumper),
        "DUMPER_NON_INTRUSIVE_MODE": "all",
    }
    command = server_command(read_model(made.model), options, folder)
    with EngineProcess(command, environment, folder / "server.log", grace=5.0) as process:
        client = Client(f"http://127.0.0.1:{port}", 120)
        client.wait_until_healthy(240, lambda: process.require_alive("before it was ready"))
        case = Case("short", Kind.COMPLETION, "An old silent pond", max_tokens=TOKENS)
        payload = payload_of(case, options.model_path.name, None)
        reply = client.post(ENDPOINTS[case.kind], payload, None, lambda: None)
        assert reply.ok, reply.text
    yield made


def imported(dump: Path, model: Path, store: Store) -> dict[str, int]:
    """Calls of each linear, by the last part of its module's name; all of them replay."""
    import_path(store, dump, ImportOptions(model=model, include_unvalidated=True))
    assert replay(store, Selection(), Options()).status == "passed"
    connection = store.read()
    try:
        rows = connection.execute("SELECT module_path FROM capture").fetchall()
    finally:
        connection.close()
    names = [str(row[0]).rpartition(".")[2] for row in rows]
    return {name: names.count(name) for name in LINEARS}


def test_the_dumpers_files_give_every_linear_of_every_layer(dumps: Dumps, tmp_path: Path) -> None:
    assert dump_kind(dumps.dumper) is DumpKind.SGLANG_DUMPER
    found = imported(dumps.dumper, dumps.model, Store.at(tmp_path / "kclab.db"))
    assert all(count >= LAYERS * TOKENS for count in found.values()), found


def test_the_tensor_dumps_passes_give_every_linear_of_every_layer(
    dumps: Dumps, tmp_path: Path
) -> None:
    assert dump_kind(dumps.passes) is DumpKind.SGLANG_PASSES
    found = imported(dumps.passes, dumps.model, Store.at(tmp_path / "kclab.db"))
    assert all(count >= LAYERS * TOKENS for count in found.values()), found
