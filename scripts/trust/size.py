"""Count the size of the code at some commits: statements of Python, YAML nodes and files of configurations.

python scripts/trust/size.py COMMIT ...      e.g. b33945a HEAD

Statements are those of the AST of evorl/ without environments and docstrings. A YAML node is a key of a mapping.
"""

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def main() -> None:
    print("| commit | statements | functions that take hyperparams | classes | YAML nodes | YAML files |")
    print("|---" * 6 + "|")
    for commit in sys.argv[1:] or ["HEAD"]:
        print(f"| {commit} | {' | '.join(f'{count:,}' for count in count_at(commit))} |")


def count_at(commit: str) -> tuple[int, ...]:
    """Return the counts of a commit, in the order of the table."""
    trees, files = [], []
    for path, text in read_files(commit):
        if path.suffix == ".py" and "envs" not in path.parts:
            trees.append(ast.parse(text))
        elif path.suffix == ".yaml":
            files.append(yaml.safe_load(text))
    found = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in found if isinstance(node, ast.FunctionDef)]
    taking = [one for one in functions if "hyperparams" in [arg.arg for arg in (*one.args.args, *one.args.kwonlyargs)]]
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return sum(map(is_statement, found)), len(taking), len(classes), sum(map(count_nodes, files)), len(files)


def read_files(commit: str) -> Iterator[tuple[PurePath, str]]:
    """Yield the files of evorl/ and configs/ at a commit."""
    command = ["git", "archive", commit, "evorl", "configs"]
    archive = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.name.endswith((".py", ".yaml")) and (file := tar.extractfile(member)):
                yield PurePath(member.name), file.read().decode()


def is_statement(node: ast.AST) -> bool:
    """Return whether a node is a statement other than a docstring."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.stmt) and not is_text


def count_nodes(node: Any) -> int:
    """Return the number of keys in all mappings."""
    if isinstance(node, dict):
        return len(node) + sum(map(count_nodes, node.values()))
    return sum(map(count_nodes, node)) if isinstance(node, list) else 0


if __name__ == "__main__":
    main()
