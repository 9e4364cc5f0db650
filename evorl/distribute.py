"""Run `python -m evorl.distribute`; `evorl.cli.distribute` has the code."""

from evorl.cli.distribute import main

if __name__ == "__main__":
    main()
