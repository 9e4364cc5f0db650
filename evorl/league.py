"""Run `python -m evorl.league`; `evorl.cli.league` has the code."""

from evorl.cli.league import main

if __name__ == "__main__":
    main()
