"""`kclab report` tells regressions, failures, results and history, and trusts no value."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kclab.db.store import Store
from tests.cli.sample import EMPTY, NOW_US
from tests.conftest import Cli
from tests.report.sample import NASTY, fill_report


class Tags(HTMLParser):
    """Every element with its attributes, all text, and what was left open."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        """The text, blanks folded."""
        return " ".join(" ".join(self.text).split())


def section(page: str, name: str) -> str:
    """The text of one section."""
    found = re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)
    assert found is not None
    return Tags(found[0]).words


def test_it_is_one_well_formed_file_that_loads_and_runs_nothing(page: str) -> None:
    parsed = Tags(page)
    assert parsed.open == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    names = {name for _, attrs in parsed.tags for name in attrs}
    assert not {n for n in names if n.startswith("on")} | ({"src", "href"} & names)
    assert "url(" not in page and "@import" not in page


def test_a_note_cannot_become_markup(page: str) -> None:
    assert "<script" not in page
    assert NASTY in Tags(page).words


def test_regressions_come_first(page: str) -> None:
    names = re.findall(r'<section id="(\w+)">', page)
    assert names == ["regressions", "runs", "failures", "fc2", "history", "environments"]
    text = section(page, "regressions")
    interval = r"-[23]\.\d % \(-\d\.\d % … -\d\.\d+ %\)"
    assert re.search(rf"32x64x32 bf16 66:600:36.* {interval} 0\.40 % ", text)
    assert "driver 575 → 580" in text
    assert "dense_gemm_bf16_nt_n64_k32 a1b2c3d4: passed before" in text


def test_without_a_slow_down_none_is_told(store: Store, fixed_clock: None, invoke: Cli) -> None:
    fill_report(store, slower=1.0)
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute("DELETE FROM replay WHERE status = 'failed'")
        connection.execute("DELETE FROM measurement WHERE name = 'replay 4000'")
    done = invoke("--db", store.database, "report", "-o", "-")
    assert "None: no timing is proven slower" in section(done.out, "regressions")


def test_a_failure_shows_its_worst_element_and_the_oracle(page: str) -> None:
    text = section(page, "failures")
    assert "7 of 512 0.25 0.02 [3, 17] 1.75 1.5 engine off; engine 41, reference 0.5 ulp" in text


def test_results_are_drawn_with_their_intervals(page: str) -> None:
    fc2 = re.search(r'<section id="fc2">.*?</section>', page, re.DOTALL)
    assert fc2 is not None
    assert re.search(r'<line class="span good" x1="[\d.]+" x2="[\d.]+"', fc2[0])
    arms = {str(attrs["class"]) for tag, attrs in Tags(fc2[0]).tags if tag == "g"}
    assert arms == {"arm armA", "arm armB0", "arm armB"}


def test_environment_changes_are_marked_over_time(page: str) -> None:
    history = re.search(r'<section id="history">.*?</section>', page, re.DOTALL)
    assert history is not None and history[0].count('class="change"') == 1
    assert "driver 575 → 580" in section(page, "history")


def test_a_period_holds_only_its_runs(reported: Store, invoke: Cli) -> None:
    done = invoke("report", "--since", "15m", "-o", "-")
    assert section(done.out, "runs").count(EMPTY[:13]) == 1
    assert "019ad3f4" not in done.out
    assert 'id="failures"' not in done.out and 'id="fc2"' not in done.out


def test_an_empty_period_is_no_report(reported: Store, invoke: Cli, tmp_path: Path) -> None:
    done = invoke("report", "--until", "2020-01-01", "-o", "r.html")
    assert done.code == 3 and "no run started" in done.err
    assert list(tmp_path.glob("r.html*")) == []


def test_the_page_is_written_where_asked(reported: Store, invoke: Cli, tmp_path: Path) -> None:
    assert invoke("report").code == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert invoke("report", "-o", "pr.md").code == 0
    assert (tmp_path / "pr.md").read_text().startswith("## kclab report")
    done = invoke("report", "-o", "nowhere/r.html")
    assert done.code == 2 and "No such file" in done.err


def test_markdown_is_short_and_escaped(reported: Store, invoke: Cli) -> None:
    text = invoke("report", "-f", "md").out
    assert re.search(r"\*\*-[23]\.", text) and "driver 575 → 580" in text
    assert "| dense\\_gemm\\_bf16\\_nt\\_n64\\_k32 | `a1b2c3d4` | C | 7 of 512 | 0.25 |" in text
    assert "\\[3, 17\\]: engine 1.75, reference 1.5 |" in text
    assert not re.search(r"[^|]  \|", text)
    assert "&lt;script&gt;" in text and "<script" not in text
    assert "\\| \\`a\\` \\[b\\](http://evil.example) &#64;all" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} <= {6, 7, 8, 9}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--since", "2h"], r"since [-\d]+ [:\d]+, \d+ runs: "),
        (["--until", "5m"], r"until [-\d]+ [:\d]+, \d+ runs: "),
        (
            ["--since", "2h", "--until", "5m"],
            r"since [-\d]+ [:\d]+ until [-\d]+ [:\d]+, \d+ runs: ",
        ),
    ],
)
def test_markdown_says_the_period(
    reported: Store, invoke: Cli, words: list[str], told: str
) -> None:
    assert re.fullmatch(told + ".*", invoke("report", "-f", "md", *words).out.splitlines()[2])


def test_markdown_of_all_tables_is_rectangular(reported: Store, invoke: Cli) -> None:
    for block in invoke("report", "-f", "md").out.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1


def crowd(store: Store) -> None:
    """More of everything than a page has room for: 45 failures of what passed, 45 errors, 72 runs,
    30 series of 75 measurements.
    """
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute("DELETE FROM replay")
        connection.executemany(
            "INSERT INTO run(uuid, command, status, started_us, heartbeat_us, pid, environment_id,"
            " argv, params) VALUES (?, 'replay', 'passed', ?, 0, 1, 1, '[]', '{}')",
            [(f"{n:08x}-3333-7000-8000-000000000000", NOW_US - n) for n in range(72)],
        )
        connection.executemany(
            "INSERT INTO replay(run_id, subject, definition, status, imported, started_us)"
            " VALUES (3, ?, 'rope_d128', ?, 0, ?)",
            [
                (f"{n}", status, at)
                for n in range(45)
                for at, status in ((1, "passed"), (2, "failed"))
            ],
        )
        connection.executemany(
            "INSERT INTO error(run_id, at_us, operation, kind, message)"
            " VALUES (3, ?, 'a', 'b', 'c')",
            [(n,) for n in range(45)],
        )
        runs = [row[0] for row in connection.execute("SELECT id FROM run LIMIT 75")]
        connection.executemany(
            "INSERT INTO measurement(run_id, name, ratio, pairs) VALUES (?, ?, 1.0, 8)",
            [(run, f"timing {n}") for n in range(30) for run in runs],
        )


def test_what_is_cut_says_how_much_there_is(reported: Store, invoke: Cli) -> None:
    crowd(reported)
    page, text = (invoke("report", "-f", form, "-o", "-").out for form in ("html", "md"))
    cuts = re.findall(r'class="sub cut">([^<]*)<', page)
    assert [re.sub(r"(\w+ of \d+ \w+).*", r"\1", cut) for cut in cuts] == [
        "30 of 45 failures", "60 of 80 runs", "30 of 45 failures", "20 of 45 errors",
        "24 of 33 series",
    ]  # fmt: skip
    assert "the newest 60 of 75" in page
    for sentence in ("15 of 80 runs are", "30 of 45 failures are", "24 of 33 series are"):
        assert f"\n\n{sentence}" in text


def test_every_regression_is_counted_though_not_all_are_named(reported: Store, invoke: Cli) -> None:
    crowd(reported)
    page = invoke("report", "-o", "-").out
    (regressions,) = re.findall(r"<b>(\d+)</b> regressions", page)
    slower = re.findall(r'<td class="r bad">', page[: page.index('id="runs"')])
    assert int(regressions) == 45 + len(slower)


def test_without_jinja2_it_says_so(
    reported: Store, invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith("kclab.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = invoke("report")
    assert done.code == 4
    assert done.err == (
        "kclab: kclab report needs jinja2, which is not installed; pip install 'kclab[report]'.\n"
    )


def test_rows_without_their_bytes_will_do(reported: Store, invoke: Cli) -> None:
    shutil.rmtree(reported.blobs.root)
    assert invoke("report", "-o", "-").code == 0
    assert not reported.blobs.root.exists()


def test_help_needs_no_jinja2() -> None:
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from kclab.cli import main\n"
        "main(['report', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and "--until" in done.stdout
