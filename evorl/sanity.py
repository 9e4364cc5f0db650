"""Run `python -m evorl.sanity`; `evorl.cli.sanity` has the code."""

from evorl.cli.sanity import main

if __name__ == "__main__":
    main()
