"""Every Python block of the documentation runs, page by page, in one namespace and in a folder of its own."""

import sys
from pathlib import Path

import matplotlib as mpl
import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[1] / "scripts" / "docs"))
    import pages

WITH_PYTHON = [page for page in pages.list_pages() if any(one.language == "python" for one in pages.read_blocks(page))]


@pytest.mark.program
@pytest.mark.parametrize(
    "page", WITH_PYTHON, ids=[str(page.relative_to(pages.ROOT).with_suffix("")) for page in WITH_PYTHON]
)
def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    mpl.use("Agg")
    before, names = set(sys.modules), {"__name__": "__main__"}
    try:
        for block in pages.read_blocks(page):
            if block.skip:
                continue
            if block.file:
                file = tmp_path / block.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.code, encoding="utf-8")
            elif block.language == "python":
                source = block.setup + block.code
                exec(compile(source, f"{page.name}:{block.line}", "exec"), names)
    finally:
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
                del sys.modules[name]


def test_a_block_that_fails_is_found_and_comments_are_checked(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- setup: x = 1 -->\n<!-- test: replace: 50_000 -> 5 -->\n```python\ny = x + 50_000\n```\n")
    (block,) = pages.read_blocks(page)
    assert (block.line, block.code, block.setup) == (3, "y = x + 5\n", "x = 1\n")
    page.write_text("<!-- test: replace: 50 -> 5 -->\n```python\ny = 1\n```\n")
    with pytest.raises(ValueError, match=r"page.md:2: replaces '50', which the block does not contain"):
        list(pages.read_blocks(page))
    page.write_text("<!-- test: slow -->\n```python\ny = 1\n```\n")
    with pytest.raises(ValueError, match="must be one of file, replace, skip"):
        list(pages.read_blocks(page))
