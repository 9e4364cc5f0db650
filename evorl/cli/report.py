"""python -m evorl.report RUN ...: writes one HTML file with learning curves, comparisons, populations and policies.

The file opens without a network. Runs are grouped by the differences of their configurations, and the seeds of runs
that differ in nothing else are joined. RUN is a run directory, LABEL=RUN, a pattern such as runs/ppo_*, a folder with
runs such as that of a multirun, or a sweep.

python -m evorl.report runs/ppo runs/td3
python -m evorl.report PPO=runs/ppo_* TD3=runs/td3_* out=report.html goal=475

  out=report.html  the file to write
  goal=            a return to mark in the charts and the table
  title=           title of the page
  policies=true    draws an episode of the best policy of each task (6 tasks at most); false: does not
  trust=[NAME]     packages whose classes the configurations of the runs may name

Damaged rows are skipped; the report and the last line say so, and the exit code is 2.
"""

from pathlib import Path
from typing import Any

from evorl.command import command, require_words, split_options, wants_help
from evorl.errors import OptionError, require


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as words:
        if wants_help(words):
            return print(__doc__)
        kinds = {"out": str, "goal": float, "title": str, "policies": bool, "trust": Any}
        paths, options = split_options(words, kinds, labels=True)
        require_words(bool(paths), "runs", paths, "give runs: python -m evorl.report RUN ...")

        from evorl.plots.chart import vl_convert
        from evorl.reports import build
        from evorl.reports.page import render_page
        from evorl.training.configuration.config_file import parse_trust
        from evorl.training.records import files

        out = Path(options.get("out", "report.html"))
        require(out.suffix == ".html", "out", out, "must end with .html")
        vl_convert()
        trust = parse_trust(options.get("trust", ()))
        damages: list[str] = []
        report = build.build_report(
            paths, damages, options.get("goal"), options.get("title"), options.get("policies", True), trust
        )
        try:
            files.write_atomically(out, render_page(report))
        except OSError as error:
            raise OptionError(f"out={out}: cannot be written: {error.strerror}") from error
        print(out)
        if damages:
            raise OptionError("; ".join(damages))
