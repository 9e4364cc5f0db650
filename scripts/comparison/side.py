"""Serve the rounds of one job to `compare.py`, in the environment of one library.

A side imports its own library and the standard library. `python sides/TOPIC_LIBRARY.py JOB SIZE` answers with versions
when its imports are done. Then each line of standard input is the number of a round, and each answer a JSON object.
Round 0 includes the set-up and all compilation. `compare.py` measures time, CPU time, and memory from outside.
"""

import json
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

Round = Callable[[int], dict[str, float]]  # runs round i; "work" is what it has done in the unit of the job
ANSWER = "answer: "
Maker = Callable[[int], Round]  # sets up a job of a size


def serve(makers: Mapping[str, Maker], *packages: str) -> None:
    """Run the job that the command line names.

    Args:
        makers: Function of the size that sets up a job, by its name.
        packages: Distributions whose versions are recorded.
    """
    name, size = sys.argv[1:]

    def answer(values: Mapping[str, Any]) -> None:
        print(f"\n{ANSWER}{json.dumps(values)}", flush=True)

    answer({"versions": {package: metadata.version(package) for package in packages}})
    one = None
    for line in sys.stdin:
        one = makers[name](int(size)) if one is None else one
        answer(one(int(line)))
