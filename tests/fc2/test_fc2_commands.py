"""`kclab fc2` over the fake CUDA libraries and on the CPU: runs, rows, exit codes, answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kclab.db.queries.fc2 import best_results
from kclab.db.store import Store
from kclab.fc2.backends.cublaslt import LtGemm
from kclab.fc2.profiling import _profiler
from tests.conftest import Cli

SHAPE = ("--shape", "10x32x96", "--backend", "cublaslt")


@pytest.fixture
def fc2(invoke: Cli, store: Store, fake_environment: dict[str, str]) -> Callable[..., Any]:
    def run(*argv: object) -> Any:
        return invoke("--db", store.database, "fc2", *argv)

    return run


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    with closing(store.read()) as connection:
        return [tuple(row) for row in connection.execute(query)]


def found(output: Any) -> list[dict[str, Any]]:
    assert output.code == 0, output.err
    parsed: list[dict[str, Any]] = json.loads(output.out)
    return parsed


def test_compile_says_what_it_found(fc2: Callable[..., Any]) -> None:
    facts = json.loads(fc2("compile", "--format", "json").out)
    assert facts["header version"] == "13.1.0" and facts["cublaslt"] == "130100"
    assert facts["gpu"] == "kclab fake GPU"


def test_sweep_keeps_everything_it_learnt(fc2: Callable[..., Any], store: Store) -> None:
    results = found(fc2("sweep", *SHAPE, "--until", "neighbours", "--format", "json"))
    assert {row["scope"] for row in results} == {"gemm", "producer+gemm"}
    assert rows(store, "SELECT budget, requested, returned FROM fc2_enumeration LIMIT 1") == [
        (0, 32, 7)
    ]
    assert {row[0] for row in rows(store, "SELECT DISTINCT status FROM fc2_candidate")} >= {
        "valid",
        "folded",
        "refused",
    }
    assert not rows(store, "SELECT 1 FROM fc2_candidate WHERE status <> 'valid' AND reason IS NULL")
    arms = rows(store, "SELECT DISTINCT arm FROM timing_sample ORDER BY arm")
    assert arms == [("A",), ("B",), ("B0",)]
    assert rows(store, "SELECT count(*) FROM fc2_parity")[0][0] == len(
        rows(store, "SELECT 1 FROM fc2_result")
    )
    assert rows(store, "SELECT command, mode, status FROM run") == [("fc2", "sweep", "passed")]
    (noted,) = rows(store, "SELECT volatile FROM run")
    baseline = json.loads(noted[0])["baseline"]
    assert baseline["rank_0"]["config"] == "66:20:35:1:0:0:0:0:2" and baseline["note"]
    assert len(baseline["output_sha256"]) == 64


def test_best_and_pareto_answer_from_the_database(fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--until", "neighbours")
    (best,) = found(fc2("best", "--workspace", "32MiB", "--format", "json"))
    assert best["verdict"] == "FAST" and best["exact"] == 1 and best["gates"] == "not gated"
    (none,) = found(fc2("best", "--workspace", "0", "--format", "json"))
    assert none["required_workspace"] == 0
    frontier = found(fc2("pareto", "--format", "json"))
    assert [row["budget"] >> 20 for row in frontier] == [0, 4, 8, 16, 32, 64]
    gains = [row["ratio"] for row in frontier]
    assert gains[-1] >= gains[0]


def test_a_gain_that_chose_itself_is_not_the_best_gain(
    fc2: Callable[..., Any], store: Store
) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics")
    lucky = "66:20:35:1:0:0:0:0:3"
    with closing(store.write()) as connection:
        changed = connection.execute(
            "UPDATE fc2_result SET ratio = 2, verdict = 'FAST', config_id = (SELECT id FROM"
            " algo_config WHERE algorithm_id = 66 AND tile_id = 20 AND cluster_shape = 3)"
            " WHERE id = (SELECT min(id) FROM fc2_result WHERE stage = 'heuristics'"
            "  AND NOT is_control AND exact = 1)"
        )
        assert changed.rowcount == 1
    (best,) = found(fc2("best", "--format", "json"))
    assert best["config"] != lucky and best["stage"] == "final"
    listed = rows(store, "SELECT count(*) FROM fc2_result WHERE ratio = 2")
    assert listed == [(1,)], "it is kept, and told by history"


def test_fastest_at_any_price_is_asked_for(fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--budget", "120s")
    (exact,) = found(fc2("best", "--format", "json"))
    (anything,) = found(fc2("best", "--any", "--format", "json"))
    assert exact["exact"] and not anything["exact"]
    assert anything["parity"].startswith("parity failed (")


def test_candidates_tell_kernels_and_reasons(fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--until", "neighbours")
    tried = found(fc2("candidates", "--limit", "1000", "--format", "json"))
    assert any(row["stream_k"] for row in tried)
    refused = [row for row in tried if row["status"] == "refused"]
    assert refused and all("NOT_SUPPORTED" in row["reason"] for row in refused)


def test_history_explain_and_reproduce(fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics")
    (best,) = found(fc2("best", "--format", "json"))
    assert len(found(fc2("history", best["config"], "--format", "json"))) >= 2
    page = json.loads(fc2("explain", best["config"], "--format", "json").out)
    assert page["kernel"] == best["kernel"] and page["Stream-K"].startswith("no")
    command = fc2("reproduce", best["result_id"]).out.split()
    assert command[:3] == ["kclab", "fc2", "selected"] and "--hot" not in command
    again = found(fc2(*command[2:], "--format", "json"))
    assert best["config"] in {row["config"] for row in again}


def test_explain_tells_the_product_alone_and_what_it_launched(
    fc2: Callable[..., Any], store: Store
) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics")
    fc2("sweep", "last", "--backend", "cublaslt", "--until", "heuristics")
    with closing(store.write()) as connection, connection:
        connection.execute(
            "UPDATE fc2_candidate SET launch_id = NULL, status = 'refused'"
            " WHERE run_id = (SELECT max(run_id) FROM fc2_candidate)"
        )
    (best,) = found(fc2("best", "--format", "json"))
    page = json.loads(fc2("explain", best["config"], "--format", "json").out)
    assert page["kernel"] == best["kernel"]
    measured = found(fc2("history", best["config"], "--format", "json"))
    alone = next(row for row in measured if row["scope"] == "gemm")
    assert measured[0]["scope"] == "producer+gemm" and measured[0]["ratio"] != alone["ratio"]
    assert f"{(alone['ratio'] - 1) * 100:+.1f} %" in page["verdict"]


def test_the_history_of_a_folded_config_names_what_it_launches_as(fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--until", "neighbours")
    tried = found(fc2("candidates", "--limit", "1000", "--format", "json"))
    folded = next(row for row in tried if row["status"] == "folded")
    asked = fc2("history", folded["config"])
    assert asked.code == 3 and folded["reason"] in asked.err


def test_a_hot_measurement_is_reproduced_hot(fc2: Callable[..., Any]) -> None:
    (row, *_) = found(fc2("selected", *SHAPE, "--hot", "--format", "json"))
    assert fc2("reproduce", row["result_id"]).out.split()[-1] == "--hot"


def test_selected_takes_the_stored_best(fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics")
    (best,) = found(fc2("best", "--format", "json"))
    measured = found(fc2("selected", "last", "--backend", "cublaslt", "--format", "json"))
    assert {row["config"] for row in measured if not row["is_control"]} == {best["config"]}


def test_characterize_checks_explicit_split_k(fc2: Callable[..., Any], store: Store) -> None:
    measured = found(fc2("characterize", *SHAPE, "--format", "json"))
    assert {row["scope"] for row in measured} == {"gemm", "producer+gemm"}
    explicit = rows(
        store,
        "SELECT c.split_k, c.reduction_scheme, f.status FROM fc2_candidate f"
        " JOIN algo_config c ON c.id = f.config_id WHERE f.origin = 'explicit' ORDER BY 1, 2",
    )
    assert (2, 4, "valid") in explicit and (8, 2, "refused") in explicit


@pytest.mark.parametrize(
    "named", ["enumerate:5:1", "66:21:35:1:0:0:0:0:2", '{"algorithm_id":66,"tile_id":21,'
              '"stages_id":35,"cluster_shape":2}']
)  # fmt: skip
def test_candidate_can_be_named(fc2: Callable[..., Any], named: str) -> None:
    measured = found(fc2("selected", *SHAPE, "--candidate", named, "--format", "json"))
    assert "66:21:35:1:0:0:0:0:2" in {row["config"] for row in measured}


def test_a_candidate_limit_bounds_what_is_tried(fc2: Callable[..., Any], store: Store) -> None:
    fc2("sweep", *SHAPE, "--candidate-limit", "5")
    tried = "SELECT count(DISTINCT launch_id) FROM fc2_candidate WHERE status = 'valid'"
    assert rows(store, tried) == [(5,)]
    assert rows(store, "SELECT count(*) FROM fc2_result WHERE stage = 'final' AND is_control")


def test_untimed_launches_are_as_many_as_asked(
    fc2: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "kclab.fc2.search.finals.warm_up", lambda _a, _s, times: asked.append(times)
    )
    fc2("selected", *SHAPE, "--candidate", "66:22:35:1:0:0:0:0:2", "--warmup", "7")
    assert asked == [7, 7], "in both scopes"


@pytest.mark.parametrize(
    ("mode", "part"),
    [("characterize", "candidate_probe"), ("selected", "candidate_probe"), ("profile", "profile")],
)
def test_output_has_what_the_seeds_mode_writes(
    fc2: Callable[..., Any], tmp_path: Any, mode: str, part: str
) -> None:
    path = tmp_path / "out" / "result.json"
    done = fc2(mode, *SHAPE, "--candidate", "66:22:35:1:0:0:0:0:2", "--output", path)
    assert done.code == 0, done.err
    document = json.loads(path.read_text())
    assert document["mode"] == mode and document[part]
    assert document["baseline_kernel_metadata"]["output_sha256"]
    assert [group["requested_count"] for group in document["heuristics"]] == [32] * 6
    checks = document["explicit_split_k_checks"]
    assert {check["valid"] for check in checks} == {True, False}
    assert all(check["error"] for check in checks if not check["valid"])
    assert document["errors_and_unsupported"][-1]["feature"] == "Stream-K"


def test_an_algorithm_without_a_reduction_scheme_is_an_entry(
    fc2: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LtGemm, "reductions", lambda _self, _algorithm: ())
    fc2("characterize", *SHAPE, "--candidate", "66:22:35:1:0:0:0:0:2")
    kept = "SELECT count(*), f.reason FROM fc2_candidate f WHERE origin = 'explicit' AND"
    found = rows(store, f"{kept} status = 'refused' GROUP BY f.reason")
    assert found == [(4, "capability reports no public reduction scheme")]


def test_a_runs_switches_are_kept_and_exported(
    fc2: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("H3_ATTENTION", "sage2")
    monkeypatch.setenv("COMFY_KITCHEN_BACKEND", "cuda")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    fc2("selected", *SHAPE, "--candidate", "66:22:35:1:0:0:0:0:2")
    document = json.loads(fc2("export", "--format", "seed").out)
    kept = document["environment"]["environment_switches"]
    assert kept["H3_ATTENTION"] == "sage2" and kept["COMFY_KITCHEN_BACKEND"] == "cuda"
    assert "SECRET_TOKEN" not in kept


def test_profiling_surrounds_one_call_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Runtime:
        def cudaProfilerStart(self) -> None:
            calls.append("start")

        def cudaProfilerStop(self) -> None:
            calls.append("stop")

    monkeypatch.setattr("torch.cuda.cudart", Runtime)
    with pytest.raises(ZeroDivisionError), _profiler("cuda"):
        calls.append("call")
        raise ZeroDivisionError
    assert calls == ["start", "call", "stop"], "stopped after an error, too"


def test_inexact_candidate_fails_with_its_rows_kept(fc2: Callable[..., Any], store: Store) -> None:
    ended = fc2("selected", *SHAPE, "--candidate", "66:20:35:2:4:0:0:0:2")
    assert ended.code == 1 and "not byte-exact" in ended.err
    assert rows(store, "SELECT status, exit_code FROM run") == [("failed", 1)]
    assert rows(store, "SELECT count(*) FROM fc2_result WHERE exact = 0")[0][0] == 2


def test_refused_candidate_says_why(fc2: Callable[..., Any]) -> None:
    ended = fc2("selected", *SHAPE, "--candidate", "66:18:35:1:0:0:0:0:2")
    assert ended.code == 1 and "tile is not built" in ended.err


@pytest.mark.parametrize("target", ["baseline", "candidate"])
def test_profile_runs_one_call(fc2: Callable[..., Any], store: Store, target: str) -> None:
    ended = fc2("profile", *SHAPE, "--profile-target", target, "--format", "json")
    assert json.loads(ended.out)["target"] == target
    assert rows(store, "SELECT mode, status FROM run") == [("profile", "passed")]


def test_nvfp4_below_capability_10_is_refused_and_stored(
    fc2: Callable[..., Any], store: Store
) -> None:
    ended = fc2("sweep", "--shape", "10x32x96", "--dtype", "nvfp4", "--backend", "cublaslt")
    assert ended.code == 4 and "compute capability 10.0" in ended.err
    refusals = rows(store, "SELECT returned, error FROM fc2_enumeration")
    assert len(refusals) == 6 and all(n == 0 and "FP4 needs" in why for n, why in refusals)
    assert rows(store, "SELECT status, exit_code FROM run") == [("failed", 4)]


def test_nvfp4_sweeps_from_capability_10(
    fc2: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCLAB_FAKE_CAPABILITY", "10.0")
    shape = ("--shape", "10x32x96", "--dtype", "nvfp4", "--backend", "cublaslt")
    results = found(fc2("sweep", *shape, "--until", "heuristics", "--format", "json"))
    assert all(row["exact"] for row in results)


def test_captured_boundary_is_swept_again_as_the_same_workload(
    fc2: Callable[..., Any], store: Store
) -> None:
    uuid = fc2("capture", *SHAPE).out.strip()
    assert fc2("capture", *SHAPE).out.strip() == uuid
    results = found(
        fc2("sweep", uuid[:8], "--backend", "cublaslt", "--until", "heuristics", "--format", "json")
    )
    assert {row["workload"] for row in results} == {uuid}
    assert rows(store, "SELECT count(*) FROM fc2_boundary") == [(1,)]
    assert rows(store, "SELECT count(*) FROM blob WHERE present") == [(3,)]


def test_resume_starts_from_what_stood(fc2: Callable[..., Any], store: Store) -> None:
    fc2("sweep", *SHAPE, "--until", "neighbours")
    fc2("sweep", "last", "--backend", "cublaslt", "--resume", "--until", "heuristics")
    assert rows(store, "SELECT count(*) > 0 FROM fc2_candidate WHERE origin = 'resumed'") == [(1,)]


def test_export_in_the_seeds_shape_comes_back(fc2: Callable[..., Any], tmp_path: Any) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics", "--output", tmp_path / "swept.json")
    fc2("export", "--format", "seed", "--output", tmp_path / "seed.json")
    assert (tmp_path / "swept.json").read_text() == (tmp_path / "seed.json").read_text()
    document = json.loads((tmp_path / "seed.json").read_text())
    assert document["fc2_boundary"]["logical_mnk"] == [10, 32, 96]
    assert document["candidates"][0]["fc2_only"]["parity"]["bf16_exact"] is True
    assert document["heuristics"][0]["returned_count"] == 7
    assert document["errors_and_unsupported"][-1]["feature"] == "Stream-K"


@pytest.mark.parametrize(
    ("numerics", "known"),
    [
        ((), ("bf16", 0)),
        (("--dtype", "fp8_e4m3"), ("fp8_e4m3", 0)),
        (("--dtype", "fp8_e4m3", "--fast-accumulation"), ("fp8_e4m3", 1)),
    ],
)
def test_an_exported_run_comes_back_as_what_it_measured(
    fc2: Callable[..., Any],
    invoke: Cli,
    store: Store,
    tmp_path: Any,
    numerics: tuple[str, ...],
    known: tuple[str, int],
) -> None:
    fc2("sweep", *SHAPE, *numerics, "--until", "heuristics")
    fc2("export", "--format", "seed", "--output", tmp_path / "seed.json")
    other = Store.at(tmp_path / "other.db")
    assert invoke("--db", other.database, "fc2", "import", tmp_path / "seed.json").code == 0
    boundary = "SELECT precision, fast_accumulation, m, n, k FROM fc2_boundary"
    assert rows(other, boundary) == rows(store, boundary) == [(*known, 10, 32, 96)]
    arms = (
        "SELECT DISTINCT r.baseline, v.backend FROM fc2_result r"
        " JOIN fc2_validity v ON v.id = r.validity_id"
    )
    assert rows(other, arms) == rows(store, arms)


def test_the_last_run_is_the_last_that_tried_configs(fc2: Callable[..., Any], store: Store) -> None:
    assert fc2("candidates").code == fc2("export", "--format", "seed").code == 3
    fc2("sweep", *SHAPE, "--until", "heuristics")
    tried = fc2("candidates", "--format", "json").out
    exported = fc2("export", "--format", "seed").out
    fc2("capture", "--shape", "8x32x96", "--backend", "cublaslt")
    assert fc2("candidates", "--format", "json").out == tried
    assert fc2("export", "--format", "seed").out == exported
    ((captured,),) = rows(store, "SELECT uuid FROM run WHERE mode = 'capture'")
    named = fc2("candidates", captured)
    assert named.code == 3 and "tried no config" in named.err


def test_every_config_of_a_run_is_a_c_function_of_its_own(
    fc2: Callable[..., Any], cuda_headers: Path, tmp_path: Path
) -> None:
    fc2("sweep", *SHAPE, "--until", "neighbours")
    fc2("export", "last", "--format", "c", "--output", tmp_path / "algos.c")
    flags = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-isystem", str(cuda_headers))
    built = subprocess.run(
        ["g++", *flags, tmp_path / "algos.c"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "algos.c").read_text().count("cublasStatus_t kclab_result_") > 1


def test_the_cpu_backends_configs_are_no_c(fc2: Callable[..., Any]) -> None:
    fc2("sweep", "--shape", "10x32x96", "--backend", "cpu", "--until", "heuristics")
    exported = fc2("export", "--format", "c")
    assert exported.code == 3 and "cpu backend" in exported.err


def test_export_as_c_sets_sixteen_bit_attributes(fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics")
    code = " ".join(fc2("export", "--format", "c").out.split())
    attribute = "cublasLtMatmulAlgoConfigSetAttribute( algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,"
    assert f"const uint16_t v = 2; status = {attribute}" in code


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("sweep", "nothing-here", "--backend", "cpu"), 3),
        (("sweep", "last", "--shape", "1x2x3"), 2),
        (("sweep", "--shape", "1x2", "--backend", "cpu"), 2),
        (("sweep", *SHAPE, "--budget", "soon"), 2),
        (("sweep", *SHAPE, "--until", "never"), 2),
        (("sweep", *SHAPE, "--workspace-budgets", "-1"), 2),
        (("sweep", "--shape", "8x8x8", "--backend", "tpu"), 2),
        (("best", "--workspace", "32M"), 2),
        (("history", "1:2"), 2),
        (("reproduce", "99"), 3),
    ],
)
def test_what_cannot_be_done_is_said_with_its_exit_code(
    fc2: Callable[..., Any], argv: tuple[str, ...], code: int
) -> None:
    ended = fc2(*argv)
    assert ended.code == code and "Traceback" not in ended.err and ended.err


def test_a_shape_without_room_is_a_sentence(fc2: Callable[..., Any], store: Store) -> None:
    ended = fc2("capture", "--shape", "1000000x1000000x1000000", "--backend", "cpu")
    assert ended.code == 4 and ended.err.startswith("kclab: out of memory: ")
    assert rows(store, "SELECT status, exit_code FROM run") == [("failed", 4)]


def test_a_busy_cpu_is_not_to_be_changed_for_another_gpu(fc2: Callable[..., Any]) -> None:
    from kclab.fc2.backends import load_backend
    from kclab.fc2.gpu import held

    with held(load_backend("cpu").facts()["gpu"]):
        ended = fc2("sweep", "--shape", "10x32x96", "--backend", "cpu")
    assert ended.code == 4 and ended.err.strip().endswith("Wait for it.")


def test_a_second_sweep_on_the_gpu_is_refused(fc2: Callable[..., Any]) -> None:
    from kclab.fc2.gpu import held

    with held("00000000-0000-0000-0000-000000000000"):
        ended = fc2("sweep", *SHAPE)
    assert ended.code == 4 and "is measuring on" in ended.err


def test_cpu_sweep_finds_bf16_partials_inexact(fc2: Callable[..., Any], store: Store) -> None:
    ended = fc2("sweep", "--shape", "24x32x256", "--dtype", "nvfp4", "--backend", "cpu",
                "--until", "heuristics", "--format", "json")  # fmt: skip
    assert ended.code == 0, ended.err
    fc2("selected", "last", "--backend", "cpu", "--candidate", "3:0:0:4:4:0:0:0:0")
    inexact = rows(
        store,
        "SELECT DISTINCT r.exact FROM fc2_result r JOIN algo_config c ON c.id = r.config_id"
        " WHERE c.reduction_scheme = 4",
    )
    assert inexact == [(0,)]


def test_confirmation_runs_fresh_processes(fc2: Callable[..., Any], store: Store) -> None:
    ended = fc2("sweep", *SHAPE, "--until", "heuristics", "--confirm", "2")
    assert ended.code == 0 and "2 of 2 fresh processes agree" in ended.err
    assert rows(store, "SELECT kind, status FROM fc2_gate") == [("process", "passed")] * 2


def add_gate(store: Store, kind: str, status: str, run: int) -> None:
    """A gate of the best config, said by a run."""
    with closing(store.write()) as connection:
        connection.execute(
            "INSERT INTO fc2_gate(run_id, boundary_id, config_id, validity_id, kind, status, at_us)"
            " SELECT ?, boundary_id, config_id, validity_id, ?, ?, 0 FROM fc2_gate LIMIT 1",
            (run, kind, status),
        )


def test_holding_in_fresh_processes_makes_a_winner_gated(
    fc2: Callable[..., Any], store: Store
) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics", "--confirm", "1")
    fc2("sweep", *SHAPE, "--until", "heuristics")

    def state() -> Any:
        return found(fc2("best", "--format", "json"))[0]["gates"]

    assert state() == "gated"
    add_gate(store, "process", "failed", run=1)
    assert state() == "failed", "one of a run's processes did not agree"
    add_gate(store, "process", "passed", run=3)
    assert state() == "gated", "a newer run of the same gate makes it good"
    add_gate(store, "block", "failed", run=2)
    assert state() == "failed", "and another kind's failure does not go away by it"


def test_asking_loads_no_torch() -> None:
    code = "import sys, kclab.cli.fc2, kclab.db.queries.fc2; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_interrupted_sweep_keeps_its_candidates_and_goes_on(
    fc2: Callable[..., Any], store: Store
) -> None:
    command = [sys.executable, "-m", "kclab", "--db", str(store.database), "fc2", "sweep", *SHAPE]
    process = subprocess.Popen(
        [*command, "--exhaustive"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job inherits an ignored SIGINT, and would then not be interrupted.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if rows(store, "SELECT count(*) FROM fc2_candidate WHERE origin = 'space'")[0][0] > 100:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    assert rows(store, "SELECT status FROM run") == [("interrupted",)]
    timed = rows(store, "SELECT count(*) FROM fc2_candidate WHERE screen_ratio IS NOT NULL")[0][0]
    assert timed > 0 and rows(store, "SELECT count(*) FROM fc2_result")[0][0] > 0
    fc2("sweep", "last", "--backend", "cublaslt", "--resume", "--until", "heuristics")
    resumed = rows(
        store, "SELECT count(*) FROM fc2_candidate WHERE origin = 'resumed' AND status = 'valid'"
    )
    assert resumed[0][0] > 0


def test_the_newest_result_of_a_config_speaks_for_it(fc2: Callable[..., Any], store: Store) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics")
    (best,) = found(fc2("best", "--format", "json"))
    with closing(store.write()) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(fc2_result)")][1:]
        slower = ", ".join(
            {"ratio": "0.9", "verdict": "'SLOW'", "measured_us": "measured_us + 1"}.get(name, name)
            for name in columns
        )
        connection.execute(
            f"INSERT INTO fc2_result({', '.join(columns)}) SELECT {slower} FROM fc2_result"
            " WHERE id = ?",
            (best["result_id"],),
        )
    (after,) = found(fc2("best", "--format", "json"))
    assert after["config"] != best["config"]


def test_best_reads_its_index_in_order(store: Store, fc2: Callable[..., Any]) -> None:
    fc2("sweep", *SHAPE, "--until", "heuristics")
    plans: list[str] = []
    with closing(store.read()) as connection:
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        best_results(connection, workspace=32 << 20)
        connection.set_trace_callback(None)
        plans = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[0]}")]
    assert any("COVERING INDEX ix_fc2_result_best (scope=? AND exact=?)" in line for line in plans)
    assert "USE TEMP B-TREE FOR GROUP BY" not in plans


def test_resuming_tries_what_was_admitted_but_never_timed(
    fc2: Callable[..., Any], store: Store
) -> None:
    fc2("sweep", *SHAPE, "--budget", "60s")
    with closing(store.write()) as connection:
        (config,) = connection.execute(
            "SELECT config_id FROM fc2_candidate WHERE origin = 'space' AND status = 'valid'"
            " AND screen_samples = 1 LIMIT 1"
        ).fetchone()
        connection.execute(
            "UPDATE fc2_candidate SET screen_ratio = NULL WHERE config_id = ?", (config,)
        )
    fc2("sweep", "last", "--backend", "cublaslt", "--resume", "--budget", "60s")
    again = "SELECT config_id FROM fc2_candidate WHERE run_id = 2 AND origin = 'space'"
    assert rows(store, again) == [(config,)]
