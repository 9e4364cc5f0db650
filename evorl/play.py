"""Entry point of `python -m evorl.play`, implemented in `evorl.cli.play`."""

from evorl.cli.play import main

if __name__ == "__main__":
    main()
