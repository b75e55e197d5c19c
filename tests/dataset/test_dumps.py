"""Engines' own dumps, imported: laid out as their writers lay them out, and replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from kclab.core.errors import BadUsage, DatasetRefused, NothingMatched
from kclab.dataset.importing import import_path
from kclab.dataset.options import ImportOptions
from kclab.db.store import Store
from kclab.replay import Options, Selection, replay

HIDDEN, INNER, TOKENS = 8, 12, 5


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.at(tmp_path / "kclab.db")


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Tensor]:
    torch.manual_seed(1)
    sizes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (4, HIDDEN),
        "self_attn.v_proj": (4, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    made = {f"model.layers.0.{n}.weight": torch.randn(s).bfloat16() for n, s in sizes.items()}
    (tmp_path / "model").mkdir()
    save_file(made, tmp_path / "model" / "model.safetensors")
    return made


@pytest.fixture
def outputs(weights: dict[str, Tensor]) -> dict[str, Any]:
    """Outputs of a layer's modules by name, as one pass of the tensor dump has them."""

    def weight(*names: str) -> Tensor:
        return torch.cat([weights[f"model.layers.0.{name}.weight"] for name in names])

    normed, attended, active = (torch.randn(TOKENS, n).bfloat16() for n in (HIDDEN, HIDDEN, INNER))
    qkv = weight("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    made = {
        "input_layernorm": [normed, normed * 2],
        "self_attn.qkv_proj": linear(normed, qkv),
        "self_attn.attn": attended,
        "self_attn.o_proj": linear(attended, weight("self_attn.o_proj")),
        "post_attention_layernorm": [normed, normed],
        "mlp.gate_up_proj": linear(normed, weight("mlp.gate_proj", "mlp.up_proj")),
        "mlp.act_fn": active,
        "mlp.down_proj": linear(active, weight("mlp.down_proj")),
    }
    return {f"model.layers.0.{name}": value for name, value in made.items()}


def definitions(store: Store) -> dict[str, int]:
    connection = store.read()
    try:
        rows = connection.execute(
            "SELECT d.name, count(*) FROM capture c JOIN workload w ON w.id = c.workload_id"
            " JOIN definition d ON d.id = w.definition_id GROUP BY d.name"
        )
        return {row[0]: row[1] for row in rows.fetchall()}
    finally:
        connection.close()


def receipts(store: Store) -> list[dict[str, Any]]:
    connection = store.read()
    try:
        return [json.loads(row[0]) for row in connection.execute("SELECT receipt FROM capture")]
    finally:
        connection.close()


def assert_replays(store: Store) -> None:
    assert replay(store, Selection(), Options()).status == "passed"


FOUR = {
    "dense_gemm_bf16_nt_n16_k8": 1,
    "dense_gemm_bf16_nt_n24_k8": 1,
    "dense_gemm_bf16_nt_n8_k12": 1,
    "dense_gemm_bf16_nt_n8_k8": 1,
}


def test_passes_give_the_linears_whose_producers_they_hold(
    tmp_path: Path, store: Store, outputs: dict[str, Any]
) -> None:
    folder = tmp_path / "dump" / "TP0_PP0_Rank0_pid42"
    folder.mkdir(parents=True)
    torch.save(outputs, folder / "Pass00003.pt")
    summary = import_path(store, tmp_path / "dump", ImportOptions(model=tmp_path / "model"))
    assert (summary.source, summary.captures) == ("sglang tensor dump", 4)
    assert definitions(store) == FOUR
    assert {(r["step"], r["rank"]) for r in receipts(store)} == {(3, 0)}
    assert_replays(store)


def test_the_dumpers_files_give_the_linears_with_input_and_output(
    tmp_path: Path, store: Store, outputs: dict[str, Any]
) -> None:
    folder = tmp_path / "dump" / "exp"
    folder.mkdir(parents=True)

    def dump(name: str, value: Any, index: int) -> None:
        tags = {"step": 2, "rank": 0, "dump_index": index, "name": f"non_intrusive__{name}"}
        file = "___".join(f"{key}={tag}" for key, tag in (tags | {"layer_id": 0}).items())
        torch.save({"value": value, "meta": tags}, folder / f"{file}.pt")

    module = "model.layers.0.mlp.down_proj"
    dump(f"{module}.inputs.0", outputs["model.layers.0.mlp.act_fn"], 1)
    dump(f"{module}.output", outputs[module], 2)
    dump("model.layers.0.self_attn.o_proj.inputs.0", outputs["model.layers.0.self_attn.attn"], 3)
    summary = import_path(store, tmp_path / "dump", ImportOptions(model=tmp_path / "model"))
    assert (summary.source, summary.captures) == ("sglang dumper", 1)
    (receipt,) = receipts(store)
    assert (receipt["module_path"], receipt["step"]) == (module, 2)
    assert_replays(store)


def test_importing_a_dump_again_adds_nothing(
    tmp_path: Path, store: Store, outputs: dict[str, Any]
) -> None:
    (tmp_path / "dump").mkdir()
    torch.save(outputs, tmp_path / "dump" / "Pass00000.pt")
    options = ImportOptions(model=tmp_path / "model")
    import_path(store, tmp_path / "dump", options)
    again = import_path(store, tmp_path / "dump", options)
    assert (again.added, again.known) == (0, 4)


def test_sglangs_dump_without_a_model_asks_for_one(
    tmp_path: Path, store: Store, outputs: dict[str, Any]
) -> None:
    torch.save(outputs, tmp_path / "Pass00000.pt")
    with pytest.raises(BadUsage, match="--model DIR"):
        import_path(store, tmp_path)


def test_parts_of_a_linear_are_left_out_by_name(
    tmp_path: Path, store: Store, outputs: dict[str, Any]
) -> None:
    (tmp_path / "dump").mkdir()
    down, act = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.act_fn"
    outputs[act] = outputs[act][:, : INNER // 2]
    torch.save(outputs, tmp_path / "dump" / "Pass00000.pt")
    summary = import_path(store, tmp_path / "dump", ImportOptions(model=tmp_path / "model"))
    assert summary.captures == 3
    assert any(down in warning and "tensor parallel" in warning for warning in summary.warnings)


class Payload:
    """What a hostile dump would run on loading."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("owned",))


def test_a_pickle_that_runs_code_is_refused_and_nothing_runs(
    tmp_path: Path, store: Store, weights: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dump").mkdir()
    torch.save({"model.norm": Payload()}, tmp_path / "dump" / "Pass00000.pt")
    with pytest.raises(DatasetRefused, match="not a file of plain tensors"):
        import_path(store, tmp_path / "dump", ImportOptions(model=tmp_path / "model"))
    assert "owned" not in capsys.readouterr().out


# FlashInfer

H, KV, D = 4, 2, 8


def call(
    root: Path,
    number: int,
    name: str,
    signature: str,
    tensors: dict[str, Tensor],
    values: dict[str, Any],
    result: Tensor | None,
    safe: bool = False,
    **more: Any,
) -> None:
    """One folder, as FlashInfer's logger writes it."""
    folder = root / f"20260101_000000_{number:03d}_pid7_{name}_call0001"
    folder.mkdir(parents=True)
    record = {
        "function_name": name,
        "call_sequence": number,
        "process_id": 7,
        "input_metadata": values,
        "function_signature": signature,
        "versions": {"flashinfer": "0.6.12"},
        "execution_status": "completed" if result is not None or "plan" in name else "inputs_saved",
        **more,
    }
    lines = [record | {"execution_status": "inputs_saved"}, record]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    saved = [("inputs", tensors), ("outputs", {} if result is None else {"result": result})]
    for kind, content in saved:
        if content and safe:
            save_file(content, folder / f"{kind}.safetensors")
        elif content:
            torch.save(content, folder / f"{kind}.pt")


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    rows, keys = q.shape[0], k.shape[0]
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if causal else None
    parts = (x.transpose(0, 1)[None].float() for x in (q, k, v))
    out = scaled_dot_product_attention(*parts, mask, enable_gqa=True)
    return out[0].transpose(0, 1).bfloat16()


SINGLE = "(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False)"


@pytest.mark.parametrize("safe", [False, True], ids=["pt", "safetensors"])
def test_single_attention_of_flashinfer_is_a_ragged_one(
    tmp_path: Path, store: Store, safe: bool
) -> None:
    q, k, v = noise(3, H, D), noise(7, KV, D), noise(7, KV, D)
    given = {"arg_0": q, "arg_1": k, "kwarg_v": v}
    values = {"kwarg_causal": True}
    name = "single_prefill_with_kv_cache"
    call(tmp_path / "d", 1, name, SINGLE, given, values, attend(q, k, v, True), safe)
    call(tmp_path / "d", 2, "rmsnorm", "(x)", {"arg_0": q}, {}, q, safe)
    (tmp_path / "d" / "session.jsonl").write_text("")
    summary = import_path(store, tmp_path / "d")
    assert definitions(store) == {f"ragged_attention_bf16_h{H}_kv{KV}_d{D}": 1}
    assert any("rmsnorm: no family describes it" in warning for warning in summary.warnings)
    assert_replays(store)


def test_paged_decode_is_gathered_by_the_plan_of_its_object(tmp_path: Path, store: Store) -> None:
    page, lengths = 4, [6, 3]
    cache = noise(5, 2, page, KV, D)
    bounds, pages, last = ([0, 2, 3], [4, 1, 2], [2, 3])
    name = "BatchDecodeWithPagedKVCacheWrapper"
    planned = {
        f"arg_{i + 1}": torch.tensor(x, dtype=torch.int32)
        for i, x in enumerate((bounds, pages, last))
    }
    wrapper = {"arg_0": {"type": name, "repr": "…"}}
    plan = "(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor)"
    call(tmp_path / "d", 1, f"{name}.plan", plan, planned, wrapper, None, self_id=99)
    q = noise(2, H, D)
    rows = [cache[[4, 1]].transpose(1, 2).flatten(0, 1)[:6], cache[2].transpose(0, 1)[:3]]
    outputs = [attend(q[i : i + 1], r[:, 0], r[:, 1], False) for i, r in enumerate(rows)]
    signature = "(self, q: torch.Tensor, paged_kv_cache: Union[torch.Tensor, Tuple[A, B]])"
    given = {"arg_1": q, "arg_2": cache}
    call(
        tmp_path / "d", 2, f"{name}.run", signature, given, wrapper, torch.cat(outputs), self_id=99
    )
    (tmp_path / "d" / "session.jsonl").write_text("")
    import_path(store, tmp_path / "d")
    assert definitions(store) == {f"ragged_attention_bf16_h{H}_kv{KV}_d{D}": 1}
    assert sum(lengths) == 9
    assert_replays(store)


def test_paged_keys_and_values_of_two_tensors_are_read_in_the_layout_of_their_object(
    tmp_path: Path, store: Store
) -> None:
    name, page = "BatchDecodeWithPagedKVCacheWrapper", 4
    k, v, q = noise(3, KV, page, D), noise(3, KV, page, D), noise(1, H, D)
    wrapper = {"arg_0": {"type": name, "repr": "…"}}
    made = "(self, float_workspace_buffer: torch.Tensor, kv_layout: str = 'NHD')"
    layout = wrapper | {"arg_2": "HND"}
    call(tmp_path / "d", 1, f"{name}.__init__", made, {"arg_1": q}, layout, q, self_id=9)
    planned = {
        f"arg_{i + 1}": torch.tensor(x, dtype=torch.int32)
        for i, x in enumerate(([0, 2], [2, 0], [3]))
    }
    plan = "(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor)"
    call(tmp_path / "d", 2, f"{name}.plan", plan, planned, wrapper, None, self_id=9)
    items = [{"type": "torch.Tensor", "tensor_key": f"arg_2__{i}"} for i in range(2)]
    cache = {"arg_2": {"type": "tuple", "length": 2, "items": items, "truncated": False}}
    given = {"arg_1": q, "arg_2__0": k, "arg_2__1": v}
    keys, values = (torch.cat([c[2], c[0]], 1).transpose(0, 1)[:7] for c in (k, v))
    signature = "(self, q: torch.Tensor, paged_kv_cache: Union[torch.Tensor, Tuple[A, B]])"
    output = attend(q, keys, values, False)
    call(tmp_path / "d", 3, f"{name}.run", signature, given, wrapper | cache, output, self_id=9)
    (tmp_path / "d" / "session.jsonl").write_text("")
    import_path(store, tmp_path / "d")
    assert definitions(store) == {f"ragged_attention_bf16_h{H}_kv{KV}_d{D}": 1}
    assert_replays(store)


def test_each_replay_of_a_cuda_graph_is_a_call(tmp_path: Path, store: Store) -> None:
    b = noise(6, 8).t()
    first, second = noise(3, 8), noise(3, 8)
    root = tmp_path / "d"
    for number, a in enumerate((first, second), 1):
        call(root / "replays", number, "mm_bf16", "(a, b)", {"arg_0": a, "arg_1": b}, {}, a @ b,
             graph_capture_flush_index=number)  # fmt: skip
    call(root, 1, "mm_bf16", "(a, b)", {"arg_0": second, "arg_1": b}, {}, second @ b)
    (owner,) = (folder for folder in root.iterdir() if folder.name != "replays")
    (owner / "graph_flushes").mkdir()
    for number, folder in enumerate(sorted((root / "replays").iterdir()), 1):
        folder.rename(owner / "graph_flushes" / f"flush_{number:04d}")
    never = {"execution_status": "graph_capture_pending_flush"}
    call(root, 2, "mm_bf16", "(a, b)", {"arg_0": first, "arg_1": b}, {}, None, **never)
    (root / "session.jsonl").write_text("")
    summary = import_path(store, root)
    assert definitions(store) == {"dense_gemm_bf16_nt_n6_k8": 2}
    assert any("never replayed" in warning for warning in summary.warnings)
    assert_replays(store)


def test_matrix_products_of_flashinfer_are_gemms(tmp_path: Path, store: Store) -> None:
    a, b = noise(3, 8), noise(6, 8).t()
    call(tmp_path / "d", 1, "mm_bf16", "(a, b)", {"arg_0": a, "arg_1": b}, {}, a @ b)
    (tmp_path / "d" / "session.jsonl").write_text("")
    import_path(store, tmp_path / "d")
    assert definitions(store) == {"dense_gemm_bf16_nt_n6_k8": 1}
    assert_replays(store)


def test_dump_of_nothing_that_is_known_says_what_was_there(tmp_path: Path, store: Store) -> None:
    call(tmp_path / "d", 1, "rmsnorm", "(x)", {"arg_0": noise(3, 8)}, {}, noise(3, 8))
    (tmp_path / "d" / "session.jsonl").write_text("")
    with pytest.raises(NothingMatched, match=r"rmsnorm: no family describes it \(1 times\)"):
        import_path(store, tmp_path / "d")
