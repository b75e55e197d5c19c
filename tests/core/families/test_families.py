"""What families write: names, interfaces, and the files that kclab ships."""

from __future__ import annotations

import ast
import inspect
import json

import pytest
import torch

from kclab.core.catalog import load_folder, shipped_folder
from kclab.core.definition_files import definition_path, definition_text
from kclab.core.definition_lint import portability_notes
from kclab.core.errors import BadUsage
from kclab.core.families import FAMILIES, family_of
from kclab.core.families.shipped import QWEN_IMAGE_21_LINEARS, shipped_definitions
from tests.core.families.family_reference import load_run

INSTANCES = {
    "dense_gemm_bf16_nt_n4096_k12288": ("dense_gemm", {"n": 4096, "k": 12288}),
    "dense_gemm_fp16_nt_n8_k4": ("dense_gemm", {"n": 8, "k": 4, "dtype": "float16"}),
    "dense_gemm_fp32_nt_bias_n8_k4": (
        "dense_gemm",
        {"n": 8, "k": 4, "dtype": "fp32", "bias": True},
    ),
    "sdpa_bf16_h32_kv32_d128": ("sdpa", {"h": 32, "d": 128}),
    "sdpa_fp16_h8_kv2_d64_dv32_mask_bool": (
        "sdpa",
        {"h": 8, "kv": 2, "d": 64, "dv": 32, "mask": "bool", "dtype": "fp16"},
    ),
    "sdpa_fp32_h2_kv2_d8_mask_float": ("sdpa", {"h": 2, "d": 8, "mask": "float", "dtype": "fp32"}),
    "prefix_cached_block_causal_h32_d128": ("prefix_cached_block_causal", {"h": 32, "d": 128}),
    "prefix_cached_block_causal_fp32_h2_d8_prefix0": (
        "prefix_cached_block_causal",
        {"h": 2, "d": 8, "dtype": "fp32", "prefix": False},
    ),
    "gdn_prefill_qk4_v8_d128_k_last": ("gated_delta_rule_prefill", {"qk": 4, "v": 8, "d": 128}),
    "gdn_decode_qk4_v8_d128_k_last": ("gated_delta_rule_decode", {"qk": 4, "v": 8, "d": 128}),
    "gdn_extend_qk16_v32_d128_k_last": (
        "gated_delta_rule_extend",
        {"qk": 16, "v": 32, "d": 128},
    ),
    "gdn_update_qk16_v32_d128_k_last_state_bf16": (
        "gated_delta_rule_update",
        {"qk": 16, "v": 32, "d": 128, "state": "bf16"},
    ),
    "ragged_attention_bf16_h16_kv2_d256": ("ragged_attention", {"h": 16, "kv": 2, "d": 256}),
    "mla_absorbed_bf16_h128_ckv512_kpe64": ("mla_absorbed", {"h": 128, "ckv": 512, "kpe": 64}),
    "mla_sparse_bf16_h128_ckv512_kpe64_topk2048": (
        "mla_sparse",
        {"h": 128, "ckv": 512, "kpe": 64, "topk": 2048},
    ),
    "moe_topk_softmax_bf16_e512_k10": ("moe_topk_softmax", {"e": 512, "k": 10}),
    "moe_topk_sigmoid_fp32_e256_k8_g8_of4": (
        "moe_topk_grouped_sigmoid",
        {"e": 256, "k": 8, "groups": 8, "stay": 4},
    ),
    "block_scaled_gemm_fp8_bf16_n7168_k2048": ("block_scaled_gemm", {"n": 7168, "k": 2048}),
    "head_gate_bf16_h32_d128": ("head_gate", {"h": 32, "d": 128}),
}

SMALL = {
    "dense_gemm": {"n": 6, "k": 5},
    "sdpa": {"h": 4, "d": 8, "kv": 2, "dv": 3},
    "prefix_cached_block_causal": {"h": 4, "d": 8},
    "gated_delta_rule_prefill": {"qk": 2, "v": 4, "d": 8},
    "gated_delta_rule_decode": {"qk": 2, "v": 4, "d": 8},
    "gated_delta_rule_extend": {"qk": 2, "v": 4, "d": 8},
    "gated_delta_rule_update": {"qk": 2, "v": 4, "d": 8},
    "ragged_attention": {"h": 4, "d": 8, "kv": 2, "dv": 3},
    "mla_absorbed": {"h": 4, "ckv": 8, "kpe": 4},
    "mla_sparse": {"h": 4, "ckv": 8, "kpe": 4, "topk": 3},
    "moe_topk_softmax": {"e": 8, "k": 2},
    "moe_topk_grouped_sigmoid": {"e": 8, "k": 2, "groups": 4, "stay": 2},
    "block_scaled_gemm": {"n": 6, "k": 5},
    "head_gate": {"h": 4, "d": 8},
}
"""Sizes that are quick to compute."""


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_has_its_name_and_is_known_by_it(name):
    family, parameters = INSTANCES[name]
    definition = FAMILIES[family].make(**parameters)
    assert definition.name == name
    assert family_of(name) == family
    assert definition.reference_sha256 in FAMILIES[family].reference_sha256s


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_is_what_other_tools_take(name):
    family, parameters = INSTANCES[name]
    definition = FAMILIES[family].make(**parameters)
    assert portability_notes(definition) == []
    for group in ("axes", "inputs", "outputs"):
        for part in definition.body[group].values():
            assert part["description"]
    assert definition.body["description"]


@pytest.mark.parametrize("name", INSTANCES)
def test_a_reference_takes_the_inputs_in_order_and_imports_only_torch(name):
    family, parameters = INSTANCES[name]
    definition = FAMILIES[family].make(**parameters)
    names = list(inspect.signature(load_run(definition)).parameters)
    assert names == list(definition.inputs)
    imports = [
        n
        for n in ast.walk(ast.parse(definition.reference))
        if isinstance(n, ast.Import | ast.ImportFrom)
    ]
    roots = {a.name if isinstance(n, ast.Import) else n.module for n in imports for a in n.names}
    assert {root.split(".")[0] for root in roots} == {"torch"}


@pytest.mark.parametrize("name", INSTANCES)
def test_a_reference_returns_what_the_definition_says_and_leaves_its_inputs_alone(name):
    family, parameters = INSTANCES[name]
    definition = FAMILIES[family].make(**{**parameters, **SMALL[family]})
    axes = definition.const_axes | {a: 3 for a in definition.var_axes}
    axes |= {a: 1 for a in ("Mb", "Mh") if a in axes} | {a: 6 for a in ("S_total",) if a in axes}
    axes |= {"num_seqs": 2} if "num_seqs" in axes else {}
    inputs = {n: example(n, s, axes) for n, s in definition.inputs.items()}
    before = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}
    facts = {n: facts_of(v) for n, v in inputs.items()}
    outputs = load_run(definition)(*inputs.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    named = dict(zip(definition.outputs, outputs, strict=True))
    definition.check_outputs(
        {n: facts_of(v) for n, v in named.items()}, definition.check_inputs(facts)
    )
    for n, v in inputs.items():
        assert not isinstance(v, torch.Tensor) or torch.equal(v, before[n])
    assert all(torch.isfinite(output.float()).all() for output in outputs)


def example(name, spec, axes):
    """A small valid value for an input."""
    if spec.shape is None:
        whole = {"top_k": 2, "num_groups": 4, "top_groups": 2}
        return False if spec.dtype == "bool" else whole.get(name, 0.5)
    shape = [axes[a] for a in spec.shape]
    if name in ("cu_seqlens", "qo_indptr", "kv_indptr"):
        return torch.tensor([0, 1, 3], dtype=getattr(torch, spec.dtype))
    if spec.dtype == "bool":
        return torch.ones(shape, dtype=torch.bool)
    if name == "sparse_indices":
        return torch.randint(-1, axes["Tk"], shape, dtype=torch.int32)
    if spec.dtype == "int32":
        return torch.tensor([-1, 0, 0, -1, 1, 1][: shape[0]], dtype=torch.int32)
    return torch.randn(shape).to(getattr(torch, spec.dtype))


def facts_of(value):
    return (str(value.dtype), tuple(value.shape)) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    ("family", "parameters", "message"),
    [
        ("dense_gemm", {"n": 4}, "needs the size k"),
        ("dense_gemm", {"n": 0, "k": 4}, "size n must be"),
        ("dense_gemm", {"n": True, "k": 4}, "size n must be"),
        ("dense_gemm", {"n": 4, "k": "4"}, "size k must be"),
        ("dense_gemm", {"n": 4, "k": 4, "m": 4}, "no parameter 'm'"),
        ("dense_gemm", {"n": 4, "k": 4, "dtype": "fp8"}, "dtype 'fp8' is none of"),
        ("dense_gemm", {"n": 4, "k": 4, "bias": "yes"}, "bias must be true or false"),
        ("dense_gemm", {"n": 4, "k": 4, "dtype": 16}, "dtype 16 is none of"),
        ("sdpa", {"h": 4, "d": 8, "kv": 3}, "cannot share"),
        ("sdpa", {"h": 4, "d": 8, "kv": 0}, "size kv must be"),
        ("sdpa", {"h": 4, "d": 8, "mask": "alibi"}, "mask 'alibi'"),
        ("prefix_cached_block_causal", {"h": 4, "d": 8, "prefix": 0}, "prefix must be true"),
        ("gated_delta_rule_decode", {"qk": 3, "v": 8, "d": 4}, "cannot share"),
    ],
)
def test_parameters_that_make_no_sense_are_named(family, parameters, message):
    with pytest.raises(BadUsage, match=message):
        FAMILIES[family].make(**parameters)


@pytest.mark.parametrize("name", ["gemm_n4_k4", "sdpa", "dense_gemm_bf16_nt_n4_k4_extra", ""])
def test_a_foreign_name_is_of_no_family(name):
    assert family_of(name) is None


def test_shipped_files_are_what_the_families_write():
    folder = shipped_folder()
    written = {definition_path(folder, d): definition_text(d) for d in shipped_definitions()}
    found = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.json")}
    assert found == written, "run: kclab definitions make --shipped --to definitions"


def test_shipped_definitions_pass_as_files_for_other_tools():
    folder = shipped_folder()
    for definition in load_folder(folder).values():
        path = definition_path(folder, definition)
        # NVFP4 has no other form: two codes a byte, scales in cuBLASLt's layout.
        if not definition.name.startswith("fc2_nvfp4"):
            assert portability_notes(definition, path) == []
        assert json.loads(path.read_text(encoding="utf-8")) == definition.body


def test_the_gated_delta_rules_state_is_judged_by_its_policy():
    definition = FAMILIES["gated_delta_rule_prefill"].make(qk=4, v=8, d=128)
    assert definition.tolerance == {"new_state": {"policy": "gdn_prefill_state"}}


def test_an_update_allows_one_rounding_of_the_write_gate_in_a_wider_state():
    family = FAMILIES["gated_delta_rule_update"]
    assert family.make(qk=4, v=8, d=128).tolerance == {"new_state": {"policy": "gdn_update_state"}}
    assert not family.make(qk=4, v=8, d=128, dtype="fp32").tolerance
    assert not family.make(qk=4, v=8, d=128, state="bf16").tolerance


def test_every_linear_of_qwen_image_21_has_its_definition():
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        model = diffusers.QwenImage21Transformer2DModel()
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert not any(linear.bias is not None for linear in linears)
    assert {(m.out_features, m.in_features) for m in linears} == set(QWEN_IMAGE_21_LINEARS)
    attention = model.transformer_blocks[0].attn
    packed = sum(p.out_features for p in (attention.to_q, attention.to_k, attention.to_v))
    assert (packed, attention.to_q.in_features) in QWEN_IMAGE_21_LINEARS


# The others read where sequences begin, which a meta tensor cannot tell.
READS_NOTHING = [n for n in INSTANCES if not n.startswith(("gdn_pre", "gdn_ext", "ragged", "mla"))]


@pytest.mark.parametrize("name", READS_NOTHING)
def test_a_reference_stays_on_its_inputs_device(name):
    family, parameters = INSTANCES[name]
    definition = FAMILIES[family].make(**{**parameters, **SMALL[family]})
    axes = definition.const_axes | {axis: 1 for axis in definition.var_axes}
    axes |= {"S_total": 2} if "S_total" in axes else {}
    inputs = (example(n, s, axes) for n, s in definition.inputs.items())
    # Operations that mix devices fail on meta tensors as they would on a GPU's.
    moved = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in inputs]
    outputs = load_run(definition)(*moved)
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        assert output.device.type == "meta"
