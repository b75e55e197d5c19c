"""The command line: parse, call a service, render. Commands load when they are used."""

from kclab.cli.main import main

__all__ = ["main"]
