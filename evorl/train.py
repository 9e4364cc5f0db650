"""Entry point of `python -m evorl.train`, implemented in `evorl.cli.train`."""

from evorl.cli.train import main

if __name__ == "__main__":
    main()
