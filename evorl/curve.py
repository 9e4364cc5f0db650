"""Run `python -m evorl.curve`; `evorl.cli.curve` has the code."""

from evorl.cli.curve import main

if __name__ == "__main__":
    main()
