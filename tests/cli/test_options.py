"""Times and sizes are read at the edge, the same in every command, in every time zone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated

import pytest
import typer

from kclab.cli.options import SinceOption, UntilOption, show_range, show_size, size_option
from kclab.core.errors import BadUsage
from kclab.db.store import Store
from tests.conftest import Cli

app = typer.Typer()


@app.command()
def probe(
    since: SinceOption = None,
    until: UntilOption = None,
    workspace: Annotated[int, size_option("--workspace", help="Bytes.")] = 1 << 25,
) -> None:
    """A command that takes a range and a size."""
    show_range(since, until)
    show_size("workspace", workspace)
    print(json.dumps([since, until, workspace]))


def run(*words: str) -> list[int | None]:
    """The values that the probe was given."""
    typer.main.get_command(app)(list(words), standalone_mode=False)
    return []


def test_values_arrive_parsed(fixed_clock: None, capsys: pytest.CaptureFixture[str]) -> None:
    run("--since", "yesterday", "--until", "1h", "--workspace", "4 MiB")
    out, err = capsys.readouterr()
    assert json.loads(out) == [1795878000000000, 1796030130000000, 4_194_304]
    assert err.splitlines() == [
        "since 2026-11-29 00:00 +09:00 (2026-11-28T15:00:00Z)",
        "until 2026-11-30 18:15:30 +09:00 (2026-11-30T09:15:30Z)",
        "workspace 4 MiB (4,194,304 bytes)",
    ]


def test_defaults_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    out, err = capsys.readouterr()
    assert json.loads(out) == [None, None, 33_554_432]
    assert err == "workspace 32 MiB (33,554,432 bytes)\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--since", "soonish"], '"soonish" is not a time'),
        (["--until", "2099-01-01"], "in the future"),
        (["--workspace", "32M"], "ambiguous: write 32MiB"),
        (["--since", "1h", "--until", "2h"], "nothing can lie between them"),
    ],
)
def test_bad_value_is_refused_before_the_command_starts(words: list[str], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        run(*words)


def test_bad_value_ends_with_one_sentence_and_exit_2(store: Store, invoke: Cli) -> None:
    done = invoke("--db", store.database, "runs", "list", "--since", "soonish")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith('kclab: "soonish" is not a time; write today, yesterday')
    assert len(done.err.splitlines()) == 1


WRITER = """
import sys
from pathlib import Path
from kclab.db.runs import run
from kclab.db.store import Store

with run(Store.at(Path(sys.argv[1])), "capture", {}) as active:
    print(active.uuid)
"""


def test_instant_written_in_tokyo_reads_the_same_elsewhere(
    store: Store, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    writer = [sys.executable, "-c", WRITER, str(store.database)]
    uuid = subprocess.run(writer, capture_output=True, text=True, check=True).stdout.strip()
    words = ("--db", store.database, "runs", "list", "--since", "10m", "--format", "json")
    found = [
        json.loads(cli(*words, env={"TZ": zone}).out)[0]
        for zone in ("UTC", "America/Los_Angeles", "Asia/Kolkata")
    ]
    assert {row["uuid"] for row in found} == {uuid}
    assert len({(row["started"], row["started_us"]) for row in found}) == 1
    assert found[0]["started"].endswith("Z")
