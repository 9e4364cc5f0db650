"""Run `python -m evorl.autotune`; `evorl.cli.autotune` has the code."""

from evorl.cli.autotune import main

if __name__ == "__main__":
    main()
