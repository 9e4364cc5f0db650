"""Entry point of `python -m evorl`, which lists the commands."""

import sys

from evorl import package

USAGE = f"""usage: python -m evorl.COMMAND ...

  train        train an agent in an environment
  play         evaluate and watch a trained policy
  export       write a trained policy to a file that needs no evorl
  report       write an HTML page about runs: curves, comparisons, populations, policies
  curve        plot learning curves and print a table of results
  lineage      plot how the population of a run evolved
  league       play a tournament between runs of one game
  sweep        search hyperparameters
  autotune     find the fastest settings for this machine
  distribute   train on several processes or machines
  sanity       train an agent on small environments that each test one ability

python -m evorl.COMMAND --help explains a command. This is evorl {package.version()}.
"""


def main() -> None:
    """Print the usage and the list of commands, or the version.

    The exit code is 2 for any argument except --help and --version.
    """
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(package.version())
        return
    print(USAGE, end="")
    if arguments not in ([], ["--help"], ["-h"]):
        sys.exit(2)


if __name__ == "__main__":
    main()
