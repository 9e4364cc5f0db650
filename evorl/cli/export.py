"""python -m evorl.export RUN OUT: exports the policy of a run to a file that can be used without evorl.

  OUT.npz          arrays and a list of NumPy operations, which the single file evorl/numpy_policy.py reads
  OUT.jaxexport    a jax.export program for CPU and CUDA, with any batch size

python -m evorl.export runs/ppo policy.npz

  seed=            one of several seeds; by default the best
  member=          a member of a population; by default the best
  which=           best (at its best evaluation) or last; by default best
  solution=        a solution of a Pareto front, by its number in RUN/play/front.csv
  solutions=false  true: all solutions of a Pareto front or an archive, only for .npz
  sampled=false    true: the policy that samples its actions, as in training, only for .npz
  trust=[NAME]     packages whose classes the configuration of the run may name
"""

from pathlib import Path
from typing import Any

from evorl.command import command, require_folder, require_words, split_options, wants_help
from evorl.errors import OptionError, require


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as words:
        if wants_help(words):
            return print(__doc__)
        kinds = {"seed": int | None, "member": int | list | None, "which": str | None, "solution": int | None}
        paths, options = split_options(words, kinds | {"solutions": bool, "sampled": bool, "trust": Any})
        usage = "give a run directory and a file: python -m evorl.export RUN policy.npz"
        require_words(len(paths) == 2, "run", paths, usage)
        run, out = map(Path, paths)

        from evorl.training.configuration.config_file import parse_trust
        from evorl.training.export import SUFFIXES, export_run

        require(out.suffix in SUFFIXES, "out", out, f"must end with {' or '.join(SUFFIXES)}")
        require_folder(run)
        given: dict[str, Any] = options | {"trust": parse_trust(options.get("trust", ()))}
        try:
            export_run(run, out, **given)
        except OSError as error:
            raise OptionError(f"out={out}: cannot be written: {error.strerror}") from error
        print(out)
