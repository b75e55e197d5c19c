"""`kclab replay` as a person types it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kclab.db.store import Store
from tests.replay.toys import RootBuilder, StoreBuilder, body, define

X = torch.tensor([1.0, 2.0])
Cli = Callable[..., Any]


@pytest.fixture
def build(tmp_path: Path) -> RootBuilder:
    builder = RootBuilder(tmp_path / "case")
    builder.define(body())
    builder.add("double", {"x": X}, {"out": X * 2})
    return builder


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with a capture that passes and one that does not."""
    build = StoreBuilder(store)
    build.add(define(name="good"), {"x": X}, {"out": X * 2}, captured_us=1)
    build.add(define(name="bad"), {"x": X}, {"out": X * 2.5}, captured_us=1)
    return store


@pytest.mark.usefixtures("warm_workers")
class TestInThisProcess:
    def test_a_passing_selection_exits_0_with_data_on_stdout(
        self, invoke: Cli, filled: Store
    ) -> None:
        done = invoke("--db", filled.database, "replay", "--definition", "good")
        assert done.code == 0
        assert "good" in done.out and "passed" in done.out
        assert "1 of 1 passed on cpu; run " in done.err

    def test_a_failure_exits_1_and_shows_element_and_next_command(
        self, invoke: Cli, filled: Store
    ) -> None:
        done = invoke("--db", filled.database, "replay")
        assert done.code == 1
        assert "FAILED  bad" in done.out
        assert "2 of 2 elements differ, worst at [1]: engine 5, reference 4" in done.out
        assert "next: kclab replay --workload " in done.out and "--oracle" in done.out

    def test_the_oracle_names_who_is_off(self, invoke: Cli, filled: Store) -> None:
        done = invoke("--db", filled.database, "replay", "--oracle")
        assert "engine 1" in done.out and "neither 1" in done.out
        assert "the engine is off, the reference is not" in done.out
        assert "worst at [0]: 2.5 where float64 gives 2" in done.out

    def test_json_has_every_output_and_its_numbers(self, invoke: Cli, filled: Store) -> None:
        done = invoke("--db", filled.database, "replay", "--format", "json", "--oracle")
        rows = {row["definition"]: row for row in json.loads(done.out)}
        assert rows["bad"]["worst_index"] == [1]
        assert rows["bad"]["oracle"] == "engine"
        assert rows["good"]["max_abs"] == 0.0

    def test_csv_has_a_header_and_a_line_an_output(self, invoke: Cli, filled: Store) -> None:
        done = invoke("--db", filled.database, "replay", "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(done.out)))
        assert [row["status"] for row in rows] == ["failed", "passed"]

    def test_nothing_selected_exits_3(self, invoke: Cli, filled: Store) -> None:
        done = invoke("--db", filled.database, "replay", "--definition", "none*")
        assert done.code == 3
        assert "nothing to replay matches --definition" in done.err

    @pytest.mark.parametrize("option", [("--trust",), ("--definitions", "somewhere")])
    def test_what_only_a_folder_takes_is_refused_without_one(
        self, invoke: Cli, filled: Store, option: tuple[str, ...]
    ) -> None:
        done = invoke("--db", filled.database, "replay", *option)
        assert done.code == 2
        assert f"{option[0]} goes with a folder" in done.err

    def test_times_are_resolved_and_shown(self, invoke: Cli, filled: Store) -> None:
        done = invoke("--db", filled.database, "replay", "--since", "1970-01-02T00:00Z")
        assert done.code == 3
        assert "since 1970-01-02" in done.err

    def test_an_untrusted_root_exits_4_and_says_how_to_trust_it(
        self, invoke: Cli, build: RootBuilder
    ) -> None:
        done = invoke("replay", build.root)
        assert done.code == 4
        assert f"kclab definitions trust {build.folder / 'definitions'}" in done.out
        shown = json.loads(invoke("runs", "list", "--format", "json").out)
        assert (shown[0]["status"], shown[0]["exit_code"]) == ("failed", 4)
        trusted = invoke("definitions", "trust", build.folder / "definitions")
        assert trusted.code == 0
        assert invoke("replay", build.root).code == 0

    def test_trust_on_the_command_line_is_said_and_kept(
        self, invoke: Cli, build: RootBuilder
    ) -> None:
        done = invoke("replay", build.root, "--trust")
        assert done.code == 0
        assert "trusting the reference of double" in done.err
        assert invoke("replay", build.root).code == 0

    def test_skipped_rows_are_listed_with_their_place(
        self, invoke: Cli, build: RootBuilder
    ) -> None:
        build.add("double", {"x": X + 1}, {"out": X}, receipt=False)
        build.add("double", {"x": X + 2}, {"out": X}, row=False)
        done = invoke("replay", build.root, "--trust")
        assert done.code == 0
        assert "1 skipped: no engine output" in done.out
        assert "1 skipped: orphan receipt" in done.out
        assert "results/captures.jsonl:2" in done.out

    def test_a_file_url_is_a_folder_and_any_other_is_to_be_imported(
        self, invoke: Cli, build: RootBuilder
    ) -> None:
        (build.root.parent / "with space").mkdir()
        empty = invoke("replay", f"{build.root.parent.as_uri()}/with%20space")
        assert (empty.code, "with space: no dataset" in empty.err) == (2, True)
        elsewhere = invoke("replay", "s3://user:secret@team/run7")
        assert elsewhere.code == 2
        assert "s3://…@team/run7: a folder is replayed in place" in elsewhere.err

    def test_a_folder_that_is_no_dataset_exits_2(self, invoke: Cli, tmp_path: Path) -> None:
        assert invoke("replay", tmp_path / "nothing").code == 2


def test_a_whole_process_keeps_noise_out_of_the_table(cli: Cli, build: RootBuilder) -> None:
    noisy = "def run(x):\n    for i in range(10000): print('spam', i)\n    return x * 3\n"
    build.define(body("noisy", noisy))
    build.add("noisy", {"x": X}, {"out": X})
    done = cli("replay", build.root, "--trust", "--device", "cpu")
    assert done.code == 1
    assert "spam" not in done.out + done.err
    assert "1 of 2 passed, 1 failed" in done.err
