"""Entry point of `python -m evorl.lineage`, implemented in `evorl.cli.lineage`."""

from evorl.cli.lineage import main

if __name__ == "__main__":
    main()
