"""Error messages of Hydra and OmegaConf about a configuration, rewritten in the terms of this project."""

import dataclasses
import difflib
import re

from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from runner.config.conf_dir import conf_dir, nested_groups
from runner.config.schema import Config

_NO_SCHEMA = "Could not load 'schema/"
_MISSING_PLUGIN = "There is no such option: correct the name, or give the --plugin that defines it."

_MISLEADING = ("To append to your config use +", "To append to your default list use +")
"""Hydra's advice for an unknown key or group; it is wrong here, because keys outside the schema are always refused."""

_NO_MATCH = re.compile(r"Could not override '([^']+)'\. No match in the defaults list\.")
"""Hydra's message for a nested group that exists but belongs to no chosen option."""


def describe(error: Exception, where: str = "") -> str:
    """Return a message with the key, the value found, the value expected and, for an unknown key, the existing keys.

    error: an error of Hydra's composition or of OmegaConf. where: dotted key of the section that OmegaConf read.
    """
    if isinstance(error, OmegaConfBaseException):
        return _value_error(error, where)
    lines = [line for line in str(error).rstrip().splitlines() if not line.startswith(_MISLEADING)]
    text = _NO_MATCH.sub(_without_group, "\n".join(lines))
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException):
        reason = _value_error(cause, where)
        # If Hydra's message already contains OmegaConf's message, only the existing keys are added.
        text += f"\n{_known_keys(cause)}" if _first_line(cause) in text else f"\n{reason}"
    if _NO_SCHEMA in text:
        text += f"\n{_MISSING_PLUGIN}"
    return text.rstrip()


def _without_group(found: re.Match[str]) -> str:
    """Return a message with the options that have the nested group; for any other group, return Hydra's message."""
    for nested in nested_groups(conf_dir()):
        if nested.name == found[1]:
            group = nested.name.partition("/")[0]
            owners = ", ".join(f"{group}={name}" for name in nested.owners)
            return f"{found[1]}: the chosen {group} has no such group; expected {owners}; or leave out {found[1]}"
    return found[0]


def _value_error(error: OmegaConfBaseException, where: str) -> str:
    place = ".".join(part for part in (where, error.full_key) if part)
    if isinstance(error, MissingMandatoryValue):
        return f"{place}: missing value"
    keys = _known_keys(error)
    return ": ".join(part for part in (place, _first_line(error)) if part) + (f"\n{keys}" if keys else "")


def _first_line(error: OmegaConfBaseException) -> str:
    return (error.msg or str(error)).splitlines()[0]


def _known_keys(error: OmegaConfBaseException) -> str:
    """Return a line with the keys of the dataclass that lacks the given key; "" for any other error."""
    schema = error.object_type
    if not isinstance(error, AttributeError | KeyError) or not dataclasses.is_dataclass(schema):
        return ""
    names = [f.name for f in dataclasses.fields(schema)]
    close = difflib.get_close_matches(str(error.key), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    owner = "the top level" if schema is Config else schema.__name__
    return f"Keys of {owner}: {', '.join(names)}{hint}"
