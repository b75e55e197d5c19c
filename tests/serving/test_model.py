"""What a model folder says, and the server's command line for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.serving import ServeOptions
from kclab.serving.command import engine_environment, require_eager, server_command
from kclab.serving.model import Medium, Runtime, read_model
from kclab.serving.ports import server_ports

REVISION = "0123456789abcdef0123456789abcdef01234567"


def make(folder: Path, name: str = "model_index.json", **facts: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(facts))
    return folder


def test_pipeline_folder_tells_schedule_and_root(tmp_path: Path) -> None:
    folder = make(
        tmp_path / "tiny",
        _class_name="QwenImage21Pipeline",
        sample_sigmas=[1, 0.5],
        transformer=["diffusers", "QwenImage21Transformer2DModel"],
    )
    model = read_model(folder)
    assert (model.runtime, model.sigmas) == (Runtime.DIFFUSION, (1.0, 0.5))
    assert (model.root, model.name) == ("QwenImage21Transformer2DModel", "tiny")
    assert model.served_name == "Qwen-Image-2.1"


def test_language_models_root_is_its_architecture(tmp_path: Path) -> None:
    folder = make(tmp_path, "config.json", architectures=["Qwen3NextForCausalLM"])
    model = read_model(folder)
    assert (model.runtime, model.root) == (Runtime.LLM, "Qwen3NextForCausalLM")


@pytest.mark.parametrize(
    ("encoder", "served"),
    [
        (["transformers", "Gemma4UnifiedForConditionalGeneration"], "LTX-2.5-Diffusers"),
        (["transformers", "Gemma3ForConditionalGeneration"], "my-ltx-2"),
        ([None, None], "my-ltx-2"),
    ],
)
def test_ltx_2_5_is_told_from_ltx_2_whatever_its_folder_is_called(
    tmp_path: Path, encoder: list[Any], served: str
) -> None:
    folder = make(tmp_path / "my-ltx-2", _class_name="LTX2Pipeline", text_encoder=encoder)
    model = read_model(folder)
    assert (model.served_name, model.name) == (served, "my-ltx-2")


@pytest.mark.parametrize("named", ["", "FL2VA", "Ref2VA"])
def test_minimax_h3_is_served_by_its_name_from_its_release_or_a_part_of_it(
    tmp_path: Path, named: str
) -> None:
    release = tmp_path / "models--MiniMaxAI--MiniMax-H3" / "snapshots" / REVISION
    for part in ("FL2VA", "Ref2VA"):
        make(release / part, _class_name="MiniMaxH3Pipeline")
    model = read_model(release / named)
    assert (model.served_name, model.medium) == ("MiniMax-H3", Medium.VIDEO)
    assert model.path == release / (named or "FL2VA")
    assert (model.name, model.revision) == ("MiniMaxAI/MiniMax-H3", REVISION)


def test_hub_cache_tells_name_and_revision(tmp_path: Path) -> None:
    folder = make(tmp_path / "models--Qwen--Qwen-Image-2.1" / "snapshots" / REVISION)
    model = read_model(folder)
    assert (model.name, model.revision) == ("Qwen/Qwen-Image-2.1", REVISION)
    assert model.source == "https://huggingface.co/Qwen/Qwen-Image-2.1"


def test_downloaded_folder_tells_its_revision(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    noted = folder / ".cache/huggingface/download/model_index.json.metadata"
    noted.parent.mkdir(parents=True)
    noted.write_text(f"{REVISION}\netag\n1.0\n")
    assert read_model(folder).revision == REVISION


@pytest.mark.parametrize("sigmas", [[], "1.0", [True], {"a": 1}])
def test_senseless_schedule_is_refused(tmp_path: Path, sigmas: Any) -> None:
    with pytest.raises(BadUsage, match="sample_sigmas"):
        read_model(make(tmp_path, sample_sigmas=sigmas))


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"neither model_index\.json nor config\.json"):
        read_model(tmp_path)
    with pytest.raises(BadUsage, match="no such folder"):
        read_model(tmp_path / "none")


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "sglang"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_image_server_runs_eager_on_the_loopback(tmp_path: Path, sglang: Path) -> None:
    model = read_model(make(tmp_path / "m", _class_name="QwenImage21Pipeline"))
    options = ServeOptions(model.path, engine_arguments=("--num-gpus", "2"))
    command = server_command(model, options, tmp_path / "out")
    assert command == [
        *(str(sglang), "serve", "--model-path", str(model.path), "--model-id", "Qwen-Image-2.1"),
        *("--host", "127.0.0.1", "--port", "30000"),
        *("--scheduler-port", "30020", "--master-port", "30021"),
        *("--performance-mode", "speed", "--attention-backend", "torch_sdpa"),
        *("--enable-torch-compile", "false", "--enable-breakable-cuda-graph", "false"),
        *("--warmup-mode", "off"),
        *("--output-path", str(tmp_path / "out/images")),
        *("--input-save-path", str(tmp_path / "out/inputs")),
        *("--num-gpus", "2"),
    ]


def test_text_server_has_graphs_and_warm_up_off(tmp_path: Path, sglang: Path) -> None:
    model = read_model(make(tmp_path / "m", "config.json", architectures=["LlamaForCausalLM"]))
    command = " ".join(server_command(model, ServeOptions(model.path), tmp_path))
    assert "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled" in command
    assert "--skip-server-warmup" in command


@pytest.mark.parametrize(
    "arguments",
    [
        ("--enable-torch-compile",),
        ("--enable-torch-compile", "true"),
        ("--enable-breakable-cuda-graph=true",),
        ("--cuda-graph-backend-decode", "full"),
        ("--port", "1"),
        ("--model-path=x",),
    ],
)
def test_engine_options_that_hide_operators_or_are_kclabs_are_refused(
    arguments: tuple[str, ...],
) -> None:
    with pytest.raises(BadUsage, match="among the engine's options"):
        require_eager(arguments)


def test_engine_options_that_keep_it_eager_are_fine() -> None:
    require_eager(("--enable-torch-compile", "false", "--tp-size", "2"))


def test_missing_engine_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = read_model(make(tmp_path / "m"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentLacking, match=r"pip install 'kclab\[sglang\]'"):
        server_command(model, ServeOptions(model.path), tmp_path)


def test_engine_environment_sets_threads_and_writes_no_byte_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = engine_environment(tmp_path / "plan.json", None)
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONDONTWRITEBYTECODE"]) == ("8", "1")
    assert environment["PATH"] == os.environ["PATH"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert engine_environment(tmp_path, None)["OMP_NUM_THREADS"] == "3"
    assert engine_environment(tmp_path, 2)["OMP_NUM_THREADS"] == "2"


def test_ports_beyond_the_last_are_refused() -> None:
    with pytest.raises(BadUsage, match="--port 65520"):
        server_ports(65_520)
