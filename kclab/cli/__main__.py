"""`python -m kclab.cli` is `kclab`."""

from kclab.cli.main import main

main()
