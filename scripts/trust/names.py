"""Count functions that are named by participles or particles, private names imported elsewhere, and repeated names.

python scripts/trust/names.py            the counts
python scripts/trust/names.py --list     the names, with file and line

A function counts if its name begins with a past participle (`told`, `made_from`) or with a preposition, pronoun or
adverb (`of`, `there`, `beyond`). Idioms of Python (`from_x`, `to_x`, `as_x`, `with_x`, `on_x`, `is_x`, `has_x`) do not
count. Flags do not count either: an adjective is the right name of a function that returns a `bool`. The last block
lists each name that several modules define at their top level. The reader decides whether they mean the same.
"""

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "evorl"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IRREGULAR = _words("""
    begun bent born bought bound bred broken brought built caught chosen come cut dealt done drawn driven eaten
    fed felt fit flown forgotten fought found given gone gotten grown had heard held hidden hit kept known laid
    led left lent let lived lost made meant met paid put read run said seen sent set shown shut sold spent split
    stood taken taught thought thrown torn understood won worked worn woven written
""") | {"told"}  # a word that scripts/docs/prose.py rejects in texts
NOT_PARTICIPLES = _words("""
    bleed come cut embed exceed feed fit hit let need proceed put read run seed set shed shut speed split
""")
PARTICLES = _words("""
    about above after again against alike all alone along already also always among around aside away
    back before behind below besides between beyond both by down each either else elsewhere ever every
    far first for further hence here how in inside instead into itself just last later less like likewise many
    more most much near never next none not now of off often once one only onto other others otherwise out
    outside over own past per quite rather same several side since so some soon still such that the their them
    then there therefore these they this those through thus together too toward towards twice under until up
    upon what when where whether which while who whole whom whose why within without yet
""") | {"anew", "apart", "beside"}  # words that scripts/docs/prose.py rejects in texts
NAMES_OF_THE_FIELD = _words("""
    for_each in_axes in_specs masked_fori_loop next_observation next_values one_hot out_specs per_seed
""")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_flag(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "bool"


def is_participle(word: str) -> bool:
    return word not in NOT_PARTICIPLES and (word in IRREGULAR or (word.endswith("ed") and len(word) > 3))


def counts(name: str) -> bool:
    """Return whether a function's name begins with a participle or a particle."""
    first = name.strip("_").split("_")[0]
    if name.startswith("__") or name.strip("_") in NAMES_OF_THE_FIELD:
        return False
    return is_participle(first) or first in PARTICLES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the names with file and line")
    given = parser.parse_args()
    found, private, defined = [], [], defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        tree, where = ast.parse(path.read_text()), path.relative_to(ROOT.parent)
        found += [f"{where}:{f.lineno} {f.name}" for f in functions(tree) if counts(f.name) and not is_flag(f)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evorl"):
                private += [f"{where}:{node.lineno} {name.name}" for name in node.names if name.name.startswith("_")]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(f"{where}:{node.lineno}")
    several = [f"{name}: {', '.join(places)}" for name, places in sorted(defined.items()) if len(places) > 1]
    for title, lines in (
        ("function names that are participles or particles", found),
        ("private names imported elsewhere", private),
        ("names that several modules define", several),
    ):
        print(f"{len(lines)} {title}")
        if given.list:
            print("\n".join(f"  {line}" for line in lines))


if __name__ == "__main__":
    main()
