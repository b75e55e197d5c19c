"""Which database a command works on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclab.core.errors import BadUsage
from kclab.db.store import Store, locate_database


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_without_settings_it_is_in_the_working_folder(here: Path) -> None:
    assert Store.at(locate_database()).database == here / "kclab.db"


def test_each_source_gives_way_to_the_one_before_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "pyproject.toml").write_text('[tool.kclab]\ndb = "from_pyproject.db"\n')
    assert locate_database() == here / "from_pyproject.db"
    (here / "kclab.toml").write_text('db = "from_toml.db"\n')
    assert locate_database() == here / "from_toml.db"
    monkeypatch.setenv("KCLAB_DB", "from_environment.db")
    assert locate_database() == Path("from_environment.db")
    assert locate_database(Path("from_option.db")) == Path("from_option.db")


def test_an_empty_variable_says_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCLAB_DB", "")
    assert locate_database() == Path("kclab.db")


def test_a_home_folder_is_understood(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("KCLAB_DB", "~/a.db")
    assert locate_database() == here / "a.db"
    monkeypatch.delenv("KCLAB_DB")
    (here / "kclab.toml").write_text('[tool.kclab]\ndb = "~/b.db"\n')
    assert locate_database() == here / "b.db"


def test_settings_of_a_folder_above_count_and_are_relative_to_it(here: Path) -> None:
    (here.parent / "pyproject.toml").write_text('[tool.kclab]\ndb = "data/kclab.db"\n')
    assert locate_database() == here.parent / "data" / "kclab.db"
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert locate_database() == here.parent / "data" / "kclab.db"


@pytest.mark.parametrize("text", ["[tool]\nkclab = 3\n", "tool = 3\n", "[tool.other]\ndb = 'x'\n"])
def test_settings_of_others_are_not_ours(here: Path, text: str) -> None:
    (here / "pyproject.toml").write_text(text)
    assert locate_database() == Path("kclab.db")


@pytest.mark.parametrize("text", ["db = 3\n", "db = ''\n", "db = [\n", 'db = "\xff"\n'])
def test_settings_without_sense_name_their_file(here: Path, text: str) -> None:
    (here / "kclab.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadUsage, match=r"kclab\.toml"):
        locate_database()


def test_a_store_stays_the_same_when_the_working_folder_changes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.at(Path("kclab.db"))
    monkeypatch.chdir(here.parent)
    assert store == Store.at(here / "kclab.db")


def test_a_link_to_a_database_is_the_same_store(store: Store, here: Path) -> None:
    (here / "link.db").symlink_to(store.database)
    assert Store.at(here / "link.db") == store
