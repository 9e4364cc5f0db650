"""Entry point of `python -m evorl.distribute`, implemented in `evorl.cli.distribute`."""

from evorl.cli.distribute import main

if __name__ == "__main__":
    main()
