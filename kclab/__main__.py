"""`python -m kclab` is `kclab`."""

from kclab.cli import main

if __name__ == "__main__":
    main()
