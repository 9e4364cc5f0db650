"""Run `python -m evorl.export`; `evorl.cli.export` has the code."""

from evorl.cli.export import main

if __name__ == "__main__":
    main()
