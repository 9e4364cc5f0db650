"""Command-line programs: `evorl.cli.train` is `python -m evorl.train`, and so on."""
