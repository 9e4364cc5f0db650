"""Entry point of `python -m evorl.sweep`, implemented in `evorl.cli.sweep`."""

from evorl.cli.sweep import main

if __name__ == "__main__":
    main()
