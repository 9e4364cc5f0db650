"""Entry point of `python -m evorl.export`, implemented in `evorl.cli.export`."""

from evorl.cli.export import main

if __name__ == "__main__":
    main()
