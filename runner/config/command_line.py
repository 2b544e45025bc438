"""Separation of Hydra's command line into overrides, and options with their values.

This module does not import Hydra, so that errors in the command line are reported before Hydra is loaded.
"""

import re
import shlex
from collections.abc import Collection, Sequence

_WITH_A_VALUE = ("--cfg", "--package", "--config-path", "--config-name", "--config-dir", "--info")
_SHORT_WITH_A_VALUE = ("-c", "-p", "-cp", "-cn", "-cd", "-i")

_NEEDS_QUOTES = re.compile(r"""[^!-~]|[=,(){}\[\]'"]""")
"""A character that is allowed only in a quoted value: a blank, a symbol of Hydra's grammar, or not ASCII."""

_COMPOUND = ("[", "{", "'", '"')  # first characters of lists, dictionaries and quoted values


def overrides_first(arguments: Sequence[str], last: Sequence[str] = ()) -> list[str]:
    """Return the arguments with all overrides before all options; the order within each kind is kept.

    Hydra's parser needs consecutive overrides: in ``model=mlp -m seed=1,2`` it would refuse ``seed=1,2``. last:
    overrides to put after all others, so that no argument can change their values.
    """
    overrides, options = split_arguments(arguments)
    return [*overrides, *last, *options]


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides, and the options, each followed by its value if it takes one."""
    overrides: list[str] = []
    options: list[str] = []
    value_expected = False
    for argument in arguments:
        if value_expected or argument.startswith("-"):
            options.append(argument)
        else:
            overrides.append(argument)
        value_expected = not value_expected and _takes_the_next(argument)
    return overrides, options


def misplaced_verb(arguments: Sequence[str], verbs: Collection[str]) -> str | None:
    """Return the first verb among the overrides, which Hydra would read as an override; None if there is none."""
    overrides, _ = split_arguments(arguments)
    return next((override for override in overrides if override in verbs), None)


def quoted(text: str, sign: str = "'") -> str:
    """Return a value of an override in quotation marks, so that Hydra reads it as text. sign: the quotation mark."""
    # Backslashes are doubled only before a quotation mark and at the end of the value.
    doubled = re.sub(rf"(\\+)(?={sign}|\Z)", r"\1\1", text)
    return sign + doubled.replace(sign, f"\\{sign}") + sign


def quoting_hint(override: str) -> str:
    """Return advice to quote the value of an override that Hydra cannot read; "" if quotes do not help."""
    key, _, value = override.partition("=")
    if not _NEEDS_QUOTES.search(value) or value.startswith(_COMPOUND):
        return ""
    typed = shlex.quote(f"{key}=" + quoted(value, '"'))
    return f"A value with such characters needs quotes that the shell passes to Hydra: {typed}"


def _takes_the_next(argument: str) -> bool:
    # argparse accepts abbreviations of long options.
    abbreviated = len(argument) > len("--") and any(option.startswith(argument) for option in _WITH_A_VALUE)
    return argument in _SHORT_WITH_A_VALUE or abbreviated
