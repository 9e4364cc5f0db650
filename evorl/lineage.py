"""Run `python -m evorl.lineage`; `evorl.cli.lineage` has the code."""

from evorl.cli.lineage import main

if __name__ == "__main__":
    main()
