"""Entry point of `python -m evorl.league`, implemented in `evorl.cli.league`."""

from evorl.cli.league import main

if __name__ == "__main__":
    main()
