"""What the commands share: how they end, how they read their arguments, and what they draw with."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes.util import find_library
from typing import Any, TextIO, get_args, get_origin

from evorl import package
from evorl.errors import OptionError, escape, exit_with_error, require, unknown_name_error


@contextmanager
def command(arguments: list[str] | None) -> Iterator[list[str]]:
    """Around what a command does with arguments, by default those of the process.

    A user's mistake ends it with one line, so do Ctrl-C and a full disk; a reader that has gone (| head) ends it
    quietly. --version prints the versions and ends it.
    A process of its own that failed or was interrupted leaves at once: Python would wait for what the device is still
    at, minutes of compiling among it, and end with SIGSEGV.
    """
    try:
        with _report_errors():
            words = sys.argv[1:] if arguments is None else arguments
            if "--version" in words:
                print(", ".join(f"{name} {version}" for name, version in package.versions().items()))
                sys.exit(0)
            yield words
    except SystemExit as end:
        if arguments is None and end.code in (1, 130):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(end.code)
        raise


@contextmanager
def _report_errors() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except OptionError as error:
        exit_with_error(error)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "stopped", file=sys.stderr)
        sys.exit(130)
    except SystemExit:  # as --help ends
        with contextlib.suppress(OSError):
            _flush_stdout()
        raise
    except BrokenPipeError:
        _flush_stdout()
    except OSError as error:
        print(f"error: {escape(str(error))}", file=sys.stderr)
        sys.exit(1)


def _flush_stdout() -> None:
    """Writes what is left for a reader, or nowhere where that has gone, so that Python finds nothing left to write."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def redirect_text(quiet: bool, json: bool) -> Iterator[TextIO | None]:
    """Keep printed text from standard output.

    Args:
        quiet: Whether text is dropped.
        json: Whether standard output is for JSON, and text goes to stderr.

    Returns:
        A context that gives the stream for JSON, or None where there is none.
    """
    out = sys.stdout if json else None
    with contextlib.ExitStack() as stack:
        if quiet:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        elif json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield out


def wants_help(words: Sequence[str]) -> bool:
    """Return whether the words of a command ask how it is used."""
    return bool({"-h", "--help"} & set(words))


def require_words(fits: bool, name: str, words: Sequence[str], usage: str) -> None:
    """Raise OptionError, with how a command is used, where its positional words are not as many as it takes."""
    if not fits:
        raise OptionError(f"{name}={' '.join(words)}: {usage}" if words else usage)


def resume_folders(words: Sequence[str]) -> list[str]:
    """Return the words of a command that trains, with a folder among them as `resume=FOLDER`.

    Raises:
        OptionError: where there are several, or resume= too.
    """
    flags = ["", *words]  # each word behind the one before it, of which it may be the value
    folders = [
        word
        for before, word in zip(flags, words, strict=False)
        if "=" not in word and not before.startswith("-") and os.path.isdir(word)
    ]
    if not folders:
        return list(words)
    given = [*folders, *(word for word in words if word.startswith("resume="))]
    require(len(given) == 1, "resume", " ".join(given), "must be one run")
    quoted = folders[0].replace("\\", "\\\\").replace("'", "\\'")
    return [f"resume='{quoted}'" if word == folders[0] else word for word in words]


def split_options(
    words: Sequence[str], kinds: Mapping[str, Any], labels: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Split the words of a command into positional ones and options.

    Args:
        words: of the command line.
        kinds: type of each option, by name; options are `name=value`, with a value in YAML.
        labels: whether `LABEL=PATH` is positional where LABEL is no option.

    Returns:
        Positional words, and the values of the options that are given.

    Raises:
        OptionError: of an unknown option, a flag such as `--seed`, or a value that is of another type.
    """
    positional, options = [], {}
    for word in words:
        name, given, text = word.partition("=")
        if word.startswith("-"):
            raise OptionError(f"{word:.60}: options are name=value; allowed: {', '.join(sorted(kinds))}")
        if not given or (labels and name not in kinds):
            positional.append(word)
        elif name not in kinds:
            raise unknown_name_error("option", name, set(kinds))
        else:
            options[name] = parse_option(name, text, kinds[name])
    return positional, options


def parse_option(name: str, text: str, kind: Any) -> Any:
    """Return the value of an option, which is of a type or of one of a union; raises OptionError."""
    import yaml

    try:
        value = yaml.safe_load(text) if text else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise OptionError(f"{name}={text:.60}: cannot be read") from error
    kinds = get_args(kind) or (kind,)
    if float in kinds and type(value) is not bool:
        with contextlib.suppress(ValueError, TypeError):
            value = float(text)  # YAML takes 1e9 for a word
    shown = getattr(kind, "__name__", str(kind).replace("None", "null"))
    require(kind is Any or type(value) in (*kinds, *map(get_origin, kinds)), name, text, f"must be of type {shown}")
    return value


def escape_cell(name: str) -> str:
    """Return a name for a table that a spreadsheet may open, which takes what begins like a formula for one."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name


def choose_opengl() -> None:
    """EGL where there is no window and EGL is there: without it MuJoCo could not even be imported."""
    if sys.platform == "linux" and "DISPLAY" not in os.environ and find_library("EGL"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def pyplot() -> Any:
    """matplotlib.pyplot, which draws into files; raises OptionError where it is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        plt.rcParams["text.parse_math"] = False  # names from elsewhere may hold a $
    except ImportError as error:
        raise OptionError(f"matplotlib is missing; {package.install_command('plot')}") from error
    return plt


def set_whole_ticks(*axes: Any) -> None:
    """Let axes of a figure, such as `axis.xaxis`, have ticks at whole numbers alone."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True)


def save_figure(figure: Any, out: Any) -> None:
    """Write a figure and close it, as pyplot keeps it otherwise; raise OptionError where it cannot be written."""
    try:
        figure.savefig(out, dpi=130)
    except (OSError, ValueError) as error:  # the latter of a suffix that is no format
        raise OptionError(f"out={out}: cannot be written: {str(error).splitlines()[0]}") from error
    finally:
        pyplot().close(figure)
