"""Entry point of `python -m evorl.autotune`, implemented in `evorl.cli.autotune`."""

from evorl.cli.autotune import main

if __name__ == "__main__":
    main()
