"""Build the documentation site: `sphinx-build -W --keep-going docs site`, then open site/index.html."""

import importlib
import inspect
import re
import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "evorl"
author = copyright = "the evorl contributors"
version = release = installed_version("evorl-workflows")
html_title = f"evorl {version}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks are stored executed, and a test compares them
nb_merge_streams = True

autodoc_default_options = {"members": True}
autodoc_typehints = "none"  # docstrings have the shapes and the units
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

default_role = "code"  # docstrings are plain text, with names in single backticks

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["evorl.css"]
html_math_renderer = "mathml"
html_copy_source = False


COPIED = ("contributing", "changelog")
PUBLIC_MODULES = ("evorl.errors", "evorl.parts", "evorl.priors", "evorl.schedules", "evorl.stats", "evorl.types")


def public_names() -> dict[str, list[tuple[str, str]]]:
    """Return the public names of each package and module, as (module that defines it, name)."""
    stubs = sorted((ROOT / "evorl").rglob("__init__.pyi"))
    packages = {".".join(stub.parent.relative_to(ROOT).parts): stub.read_text("utf-8") for stub in stubs}
    found = {of: re.findall(r"^from (\S+) import (\w+) as \w+$", text, re.MULTILINE) for of, text in packages.items()}
    for name in PUBLIC_MODULES:
        values = vars(importlib.import_module(name)).items()
        inside = name if name != "evorl.types" else "evorl.types."
        found[name] = [
            (value.__module__, one)
            for one, value in values
            if not one.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
            if value.__module__.startswith(inside)
        ]
    return found


def describe(package: str, module: str, name: str, elsewhere: dict[tuple[str, str], str]) -> list[str]:
    """Return the lines of reStructuredText for one public name: its documentation, or a link to it."""
    value = getattr(importlib.import_module(package), name)
    if inspect.ismodule(value):
        return [f"* :doc:`/reference/packages/{value.__name__}`"] if package == "evorl" else []
    if (module, name) in elsewhere:
        role = "class" if inspect.isclass(value) else "func" if callable(value) else "data"
        return [f"* :py:{role}:`{elsewhere[module, name]}.{name}`"]
    kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
    return ["", f".. auto{kind}:: {package}.{name}", ""]


def write_reference(app) -> None:
    """Write a page of the reference for each public package and module."""
    del app
    folder = DOCS / "reference" / "packages"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages, elsewhere = public_names(), {}
    for package in sorted(packages, reverse=True):  # a name of two packages is described in the inner one
        lines = [line for module, name in packages[package] for line in describe(package, module, name, elsewhere)]
        elsewhere |= {one: package for one in packages[package] if one not in elsewhere}
        summary = (importlib.import_module(package).__doc__ or "").strip()
        page = [f"# {package}", "", summary, "", "```{eval-rst}", *lines, "```", ""]
        (folder / f"{package}.md").write_text("\n".join(page), encoding="utf-8")


def copy_pages(app) -> None:
    """Copy what is outside of this folder to where Sphinx finds it: notebooks, CONTRIBUTING.md and CHANGELOG.md."""
    del app
    folder = DOCS / "tutorials" / "notebooks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(notebook, folder)
    for name in COPIED:
        text = (ROOT / f"{name.upper()}.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!https?:|#|docs/)([^)]+)\)", r"](../\1)", text).replace("](docs/", "](")
        (DOCS / f"{name}.md").write_text(text, encoding="utf-8")


def adapt_links(app, name: str, source: list[str]) -> None:
    """Let links to the copied files lead to their pages."""
    del app, name
    source[0] = re.sub(r"\]\((?:\.\./)+notebooks/(\w+\.ipynb)\)", r"](/tutorials/notebooks/\1)", source[0])
    for copied in COPIED:
        source[0] = re.sub(rf"\]\((?:\.\./)+{copied.upper()}\.md", f"](/{copied}.md", source[0])


def escape_markup(app, what, name, value, options, lines: list[str]) -> None:
    """Escape what reStructuredText would read as markup: a shape [steps, *batch] is no emphasis."""
    del app, what, name, value, options
    for i, line in enumerate(lines):
        lines[i] = re.sub(r"`[^`]*`|[*|]", lambda found: found[0] if len(found[0]) > 1 else "\\" + found[0], line)


def shorten_signature(app, what, name, value, options, signature: str | None, returns) -> tuple[str | None, None]:
    """Replace the long representation of a Flax module that is a default by its name."""
    del app, what, name, value, options, returns
    return signature and re.sub(r"(\w+)\(\s*# attributes(?:[^()]|\([^()]*\))*\)", r"\1()", signature), None


def write_math(self, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers display without scripts and without a network."""
    block = isinstance(node, nodes.math_block)
    self.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app) -> None:
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", escape_markup, priority=400)  # before napoleon
    app.connect("source-read", adapt_links)
    app.connect("builder-inited", write_reference)
    app.connect("builder-inited", copy_pages)
