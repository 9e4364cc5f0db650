"""Entry point of `python -m evorl.sanity`, implemented in `evorl.cli.sanity`."""

from evorl.cli.sanity import main

if __name__ == "__main__":
    main()
