"""Entry point of `python -m evorl.report`, implemented in `evorl.cli.report`."""

from evorl.cli.report import main

if __name__ == "__main__":
    main()
