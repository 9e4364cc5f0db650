"""Command-line programs: `evorl.cli.train` implements `python -m evorl.train`, and so on."""
