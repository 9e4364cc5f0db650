"""Run `python -m evorl.train`; `evorl.cli.train` has the code."""

from evorl.cli.train import main

if __name__ == "__main__":
    main()
