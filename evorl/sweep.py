"""Run `python -m evorl.sweep`; `evorl.cli.sweep` has the code."""

from evorl.cli.sweep import main

if __name__ == "__main__":
    main()
