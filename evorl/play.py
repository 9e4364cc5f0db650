"""Run `python -m evorl.play`; `evorl.cli.play` has the code."""

from evorl.cli.play import main

if __name__ == "__main__":
    main()
