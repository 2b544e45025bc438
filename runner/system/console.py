"""The terminal: command-line parsers, error messages, and the log of the package."""

import argparse
import difflib
import itertools
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from runner.errors import ConfigError, RunnerError
from runner.system.redaction import SecretlessFormatter, redact_text

DEBUG_OPTION = "--debug"  # the option that prints tracebacks, anywhere on a command line
SUPERVISE_OPTION = "--supervise"  # the option that starts a killed run again; it may be anywhere on a command line
SUPERVISOR_OPTION = "--supervisor"  # the option with which a supervising process passes on its process id
_FILE_ONLY = "file_only"

NOT_ON_TERMINAL: Mapping[str, bool] = {_FILE_ONLY: True}
"""Argument ``extra`` of a log call whose text goes to the file only, because the terminal already shows the text."""


def print_error(error: BaseException, *, what: str = "runner", debug: bool = False) -> None:
    """Print an error to standard error, without secrets. A RunnerError is printed as ``what: error: message``.

    The traceback is printed if ``debug`` is true, or if the error is not a RunnerError and therefore a bug.
    """
    if debug or not isinstance(error, RunnerError):
        print(redact_text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, RunnerError):
        print(redact_text(f"{what}: error: {error}"), file=sys.stderr, flush=True)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Within the block, write the package's log to a file (from level INFO) and to standard error (from WARNING)."""
    package = logging.getLogger("runner")
    level = package.level
    to_file = logging.FileHandler(path, encoding="utf-8")
    to_file.setFormatter(SecretlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers = [to_file, _TerminalHandler()]
    for handler in handlers:
        package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            package.removeHandler(handler)
            handler.close()
        package.setLevel(level)


class _TerminalHandler(logging.Handler):
    """A log handler that prints to the current ``sys.stderr``, which a progress bar replaces while it is shown."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(SecretlessFormatter("%(message)s"))
        self.addFilter(lambda record: not hasattr(record, _FILE_ONLY))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record. The logging module reports an OSError, such as that of a closed pipe."""
        try:
            print(f"runner: {record.levelname.lower()}: {self.format(record)}", file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)


Advice = Callable[[str, str | None], str]  # a function (unknown option, next argument or None) -> error message


def verb_parser(verb: str, description: str, epilog: str, advice: Advice | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``runner VERB``; the line breaks of description and epilog are kept.

    Parsing raises ConfigError for wrong arguments. advice: returns the error message for an unknown option that is not
    similar to a known option.
    """
    return _VerbParser(prog=f"runner {verb}", description=description, epilog=epilog, advice=advice)


def add_yaml_options(parser: argparse.ArgumentParser, use: str = "", *, primary: bool = False) -> None:
    """Add Hydra's option --config-dir and, if ``primary`` is true, --config-path and --config-name.

    Without --config-name, the parsed arguments have no ``config_name``. use: text at the end of each option's help.
    """
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help=f"your own YAML files{use}")
    if primary:
        replaced, name = f"YAML files that replace runner's own{use}", f"the primary YAML file{use} (default: config)"
        parser.add_argument("--config-path", "-cp", type=Path, metavar="DIR", help=replaced)
        parser.add_argument("--config-name", "-cn", metavar="NAME", default=argparse.SUPPRESS, help=name)


def parse_subcommand(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a verb with subcommands. Overrides may follow an option.

    Raises ConfigError for wrong arguments.
    """
    options, others = parser.parse_known_args(arguments)
    # argparse returns overrides that follow an option as unknown arguments.
    if others and (not hasattr(options, "overrides") or any(text.startswith("-") for text in others)):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    if others:
        options.overrides += others
    return options


class _VerbParser(argparse.ArgumentParser):
    """A parser that raises ConfigError, and that reports unknown options before all other errors.

    The parsers of subcommands have the same class. On the command line, a subcommand follows the options of its verb.
    """

    def __init__(self, *, advice: Advice | None = None, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._advice = advice or (lambda option, following: f"{option}: no such option; see `{self.prog} --help`")
        self._has_subcommands = False

    def add_subparsers(self, **settings: Any) -> Any:
        self._has_subcommands = True
        return super().add_subparsers(**settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._refuse_unknown(list(args))
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def _refuse_unknown(self, arguments: Sequence[str]) -> None:
        faults = []
        for argument, following in itertools.zip_longest(arguments, arguments[1:]):
            if argument == "--" or (self._has_subcommands and not _is_option(argument)):
                break
            if argument in ("-h", "--help"):
                return
            if _is_option(argument) and not self._may_be_known(argument):
                faults.append(self._fault(argument, following))
        if faults:
            raise ConfigError("\n".join(faults))

    def _may_be_known(self, argument: str) -> bool:
        """Return whether argparse accepts an option, which can be abbreviated, or reports it as ambiguous."""
        name = argument.partition("=")[0]
        return any(known.startswith(name) for known in self._option_string_actions)

    def _fault(self, argument: str, following: str | None) -> str:
        close = difflib.get_close_matches(argument.partition("=")[0], self._option_string_actions, n=1)
        if close:
            return f"{argument}: no such option; did you mean {close[0]!r}? See `{self.prog} --help`"
        return self._advice(argument, following)


def _is_option(argument: str) -> bool:
    """Return whether an argument is an option, and not a negative number or "-", the name of a stream."""
    return argument.startswith("-") and argument.lstrip("-")[:1].isalpha()
