"""Entry point of `python -m evorl.curve`, implemented in `evorl.cli.curve`."""

from evorl.cli.curve import main

if __name__ == "__main__":
    main()
