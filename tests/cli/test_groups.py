"""Option groups become a command's own options, and come back as their dataclass."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.testing import CliRunner

from kclab.cli.groups import grouped


@dataclass(frozen=True)
class Names:
    """What a thing is called."""

    first: Annotated[str, typer.Option("--first-name", help="The first.")]
    more: Annotated[list[str] | None, typer.Option("--more", help="Others.")] = None


app = typer.Typer()


@app.command()
@grouped
def call(
    context: typer.Context, names: Names, place: Annotated[Path, typer.Argument()] = Path("here")
) -> None:
    """Call somebody.

    Loudly.
    """
    typer.echo(f"{context.info_name} {names} {place}")


def test_a_groups_options_reach_the_command_as_one_object() -> None:
    ended = CliRunner().invoke(app, ["--first-name", "Ada", "--more", "B", "--more", "C", "there"])
    assert ended.output == f"call {Names('Ada', ['B', 'C'])} there\n"


def test_a_groups_defaults_and_required_options_are_the_commands_own() -> None:
    assert CliRunner().invoke(app, ["--first-name", "Ada"]).output == f"call {Names('Ada')} here\n"
    ended = CliRunner().invoke(app, [])
    assert ended.exit_code == 2
    assert "--first-name" in ended.output


def test_help_shows_a_groups_options_and_the_commands_words() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "The first." in shown
    assert "Call somebody." in shown
    assert "--names" not in shown
