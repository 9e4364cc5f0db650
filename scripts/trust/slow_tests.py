"""Tests that take more than their budget, for `tests/slow.txt`, where CI leaves them out.

pytest -n 2 --dist worksteal --junitxml=times.xml && python scripts/trust/slow_tests.py times.xml

A test may take 2 seconds, all cases of one together 3; of cases the quickest stay. What nothing else tests stays too:
add of these lines what others stand for.
"""

import argparse
from collections import defaultdict
from xml.etree import ElementTree

ALONE, CASES, CASE = 2.0, 3.0, 0.6  # seconds of a test, of all cases of one, and below which a case always stays


def beyond(times: dict[str, float]) -> list[str]:
    """The names of those beyond their budgets, by the seconds of all."""
    cases = defaultdict(list)
    for name, seconds in times.items():
        cases[name.partition("[")[0]].append((seconds, name))
    found = []
    for several in cases.values():
        spent = 0.0
        for place, (seconds, name) in enumerate(sorted(several)):
            spent += seconds
            alone = len(several) == 1 and seconds > ALONE
            if alone or (place and spent > CASES and seconds > CASE):
                found.append(name)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", help="what pytest has written by --junitxml")
    times = {}
    for case in ElementTree.parse(parser.parse_args().report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/")
        times[f"{file}.py::{case.attrib['name']}"] = float(case.attrib["time"])
    print("\n".join(beyond(times)))


if __name__ == "__main__":
    main()
