"""Functions that the commands share: exit codes, command-line arguments and figures."""

import atexit
import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import Any, NoReturn, TextIO, get_args, get_origin

from evorl import package
from evorl.errors import OptionError, escape, exit_with_error, require, unknown_name_error


@contextmanager
def command(arguments: list[str] | None) -> Iterator[list[str]]:
    """Run the body of a command with its arguments (None: those of the process), and report errors.

    A user error ends the command with one line and exit code 2, Ctrl-C with exit code 130, and an OSError,
    such as a full disk, with exit code 1. If the reader of the output has exited (| head), the command ends
    silently. --version prints the versions and exits.

    If `arguments` is None, a command that failed or was interrupted exits at once. Otherwise, Python would
    wait for pending work of the device, such as a compilation of several minutes, and end with SIGSEGV. Any
    other command of `python -m evorl` exits after the functions of `atexit`, since to delete all modules of JAX
    takes half a second.
    """
    succeeded = False

    def exit_early() -> None:
        if succeeded:
            _exit(0)

    spec = sys.modules["__main__"].__spec__
    if arguments is None and spec is not None and spec.name.partition(".")[0] == "evorl":
        atexit.register(exit_early)  # runs last, since it is the first
    try:
        with _report_errors():
            words = sys.argv[1:] if arguments is None else arguments
            if arguments is None and "" not in sys.path and not sys.flags.safe_path:
                sys.path.insert(0, "")  # the console scripts import modules of the current folder, as python -m does
            if "--version" in words:
                print(", ".join(f"{name} {version}" for name, version in package.versions().items()))
                sys.exit(0)
            yield words
        succeeded = True
    except SystemExit as end:
        if arguments is None and end.code in (1, 130):
            _exit(end.code)
        raise


def _exit(code: int) -> NoReturn:
    """Exit at once, without functions of `atexit`."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


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
    except SystemExit:  # for example after --help
        with contextlib.suppress(OSError):
            _flush_stdout()
        raise
    except BrokenPipeError:
        _flush_stdout()
    except OSError as error:
        print(f"error: {escape(str(error))}", file=sys.stderr)
        sys.exit(1)


def _flush_stdout() -> None:
    """Flush standard output; if its reader has exited, discard the rest, so that Python's own flush does not fail."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def redirect_text(quiet: bool, json: bool) -> Iterator[TextIO | None]:
    """Keep printed text away from standard output.

    Args:
        quiet: True to discard text.
        json: True to reserve standard output for JSON, so that text goes to stderr.

    Returns:
        A context manager that gives the stream for JSON; None without JSON.
    """
    out = sys.stdout if json else None
    with contextlib.ExitStack() as stack:
        if quiet:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        elif json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield out


def wants_help(words: Sequence[str]) -> bool:
    """Return whether the arguments of a command ask for its help."""
    return bool({"-h", "--help"} & set(words))


def require_folder(run: Path) -> None:
    """Raise OptionError if a run does not exist, or is a file."""
    require(run.is_dir(), "run", run, "is a file, not a run directory" if run.is_file() else "does not exist")


def require_words(fits: bool, name: str, words: Sequence[str], usage: str) -> None:
    """Raise OptionError with the usage of a command if the number of its positional arguments is wrong."""
    if not fits:
        raise OptionError(f"{name}={' '.join(words)}: {usage}" if words else usage)


def resume_folders(words: Sequence[str]) -> list[str]:
    """Return the arguments of a training command, with a folder among them rewritten as `resume=FOLDER`.

    Raises:
        OptionError: If several folders are given, or a folder and resume=.
    """
    flags = ["", *words]  # the word before each word; if it is a flag, the word may be its value
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
    """Split the arguments of a command into positional arguments and options.

    Args:
        words: Arguments of the command line.
        kinds: Type of each option, by name. Options have the form `name=value`, with a value in YAML.
        labels: True if `LABEL=PATH` is a positional argument unless LABEL is an option.

    Returns:
        The positional arguments, and the values of the given options.

    Raises:
        OptionError: If an option is unknown, an argument is a flag such as `--seed`, or a value has the wrong
            type.
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
    """Return the value of an option; raise OptionError if it has none of the types of `kind`, a type or a union."""
    import yaml

    try:
        value = yaml.safe_load(text) if text else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise OptionError(f"{name}={text:.60}: is not valid YAML") from error
    kinds = get_args(kind) or (kind,)
    if float in kinds and type(value) is not bool:
        with contextlib.suppress(ValueError, TypeError):
            value = float(text)  # YAML reads 1e9 as a string
    require(not isinstance(value, float) or math.isfinite(value), name, text, "must be finite")
    shown = getattr(kind, "__name__", str(kind).replace("None", "null"))
    require(kind is Any or type(value) in (*kinds, *map(get_origin, kinds)), name, text, f"must be of type {shown}")
    return value


def choose_opengl() -> None:
    """Select EGL if it is available and there is no display; without it, MuJoCo could not even be imported."""
    if sys.platform == "linux" and "DISPLAY" not in os.environ and find_library("EGL"):
        os.environ.setdefault("MUJOCO_GL", "egl")
