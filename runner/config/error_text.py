"""Error messages about a configuration: errors of Hydra and OmegaConf in the terms of this project, and suggestions."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import get_args

from omegaconf import ListConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, ValidationError

from runner.callback import CALLBACKS
from runner.config.conf_dir import conf_dir, nested_groups
from runner.config.groups import GROUPS, group_of, known_keys, optional_sections
from runner.config.schema import Config

_NO_SCHEMA = "Could not load 'schema/"
_MISSING_PLUGIN = "There is no such option: correct the name, or give the --plugin that defines it."

_MISLEADING = ("To append to your config use +", "To append to your default list use +")
"""Hydra's advice for an unknown key or group. The advice is wrong here, because keys outside the schema are refused."""

_NO_MATCH = re.compile(r"Could not override '([^']+)'\. No match in the defaults list\.")
"""Hydra's message for a nested group that exists but belongs to no chosen option."""

_IN_FILE = re.compile(r"In '(([^'/]+)/[^']+)': ")
"""Hydra's prefix of an error in the defaults list of a file that is not the primary file: the file and its group."""

_OWN_FILES = "; for an option in your own YAML files, give --config-dir DIR"

_NO_NEW_ENTRY = (
    "The command line changes the values of entries; to add an entry, write it in a YAML file of its group and give "
    "--config-dir DIR"
)

_NO_NEW_SECTION = (
    "The command line changes only sections that are not null; choose an option of the group that sets the section, or "
    "write the section in a YAML file of the group and give --config-dir DIR"
)

_LEAST_SIMILARITY = 0.75
"""Smallest similarity of a suggested key; above difflib's 0.6, because the keys of all sections are candidates."""


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
        if (
            _is_unknown_key(cause)
            or _is_unknown_entry(cause)
            or _is_scalar_for_list(cause)
            or cause.full_key == "callbacks"
        ):
            return reason
        # Hydra's message can already quote OmegaConf's message.
        text += "" if _first_line(cause) in text else f"\n{reason}"
        if "is not a subclass of" in text:  # OmegaConf's message for an override with "+" that adds an entry
            text += f"\n{_NO_NEW_ENTRY}"
    if _NO_SCHEMA in text:
        # The other lines are the folders in which Hydra searched; none of them can contain a schema.
        text = f"{text.splitlines()[0]}\n{_MISSING_PLUGIN}"
    return text.rstrip()


def unknown_option(text: str, path: str, options: Iterable[str]) -> str:
    """Return a message for an option that its group does not have. path: "GROUP/OPTION". text: Hydra's message."""
    group, _, name = path.rpartition("/")
    file = _IN_FILE.match(text)
    # The command line can choose options of the file's group and of nested groups; such errors do not name the file.
    place = f"{file[1]}.yaml: " if file and file[2] != group.partition("/")[0] else ""
    hint = _most_similar(name, options) or ("" if group.startswith("hydra") else _OWN_FILES)
    return f"{place}{group}={name}: no such option{hint}\nOptions of {group}: {', '.join(options)}"


def unknown_callback(name: str) -> str:
    """Return a message for a callback that no plugin defines, or that is chosen as if it had a YAML file."""
    if name in CALLBACKS:
        return (
            f"callbacks={name}: no such file of callbacks; write callbacks.{name}={{}} or callbacks.{name}.KEY=VALUE, "
            "or give --config-dir DIR"
        )
    known = ", ".join(CALLBACKS) or "none"
    hint = _most_similar(name, CALLBACKS)
    return f"callbacks.{name}: no such callback{hint}\nCallbacks of the plugins: {known}\n{_MISSING_PLUGIN}"


def unknown_command_line_option(option: str, following: str | None) -> str:
    """Return a message for an option such as "--epochs" or "--epochs=5" that suggests the override to write instead.

    following: the next argument, or None. Unless it is an option or an override, it is the value of the option.
    """
    name, has_value, value = option.lstrip("-").partition("=")
    if not has_value:
        value = "VALUE" if following is None or following.startswith("-") or "=" in following else following
    keys = _keys_like(name) if option.startswith("--") else []
    instead = " or ".join(f"{key}={value}" for key in keys)
    advice = f"write {instead}" if keys else "keys are set by KEY=VALUE; see `runner --help` and `runner --hydra-help`"
    return f"{option}: no such option; {advice}"


def null_section(arguments: Iterable[str]) -> str | None:
    """Return a message for overrides of sections that can be null; None if no argument is such an override.

    For such an override of a section that is null, OmegaConf raises errors of Python that name no key.
    """
    lines, sections = [], sorted(optional_sections(), key=len, reverse=True)
    for argument in arguments:
        key = f"{argument.lstrip('+').partition('=')[0]}."
        if section := next((each for each in sections if key.startswith(f"{each}.")), ""):
            lines.append(f"{argument}: {section}, or a section that contains it, is null")
    return "\n".join([*lines, _NO_NEW_SECTION]) if lines else None


def _without_group(found: re.Match[str]) -> str:
    """Return a message with the options that have the nested group. If no such group exists, return Hydra's message."""
    for nested in nested_groups(conf_dir()):
        if nested.name == found[1]:
            group = nested.name.partition("/")[0]
            owners = ", ".join(f"{group}={name}" for name in nested.owners)
            return f"{found[1]}: the chosen option of {group} has no such group; use {owners}, or leave out {found[1]}"
    return found[0]


def _value_error(error: OmegaConfBaseException, where: str) -> str:
    place = ".".join(part for part in (where, error.full_key) if part)
    if isinstance(error, MissingMandatoryValue):
        return f"{place}: missing value"
    if _is_unknown_key(error):
        return _unknown_key(error, place)
    if _is_unknown_entry(error):
        return f"{place}: no such entry\n{_NO_NEW_ENTRY}"
    if place == "callbacks":
        return unknown_callback(str(error.value))
    if _is_scalar_for_list(error):
        return f"{place}={error.value}: expected a list; write {place}=[{error.value}]"
    return ": ".join(part for part in (place, _first_line(error)) if part)


def _first_line(error: OmegaConfBaseException) -> str:
    return (error.msg or str(error)).splitlines()[0]


def _is_scalar_for_list(error: OmegaConfBaseException) -> bool:
    scalar = isinstance(error.value, str | int | float)
    return isinstance(error, ValidationError) and isinstance(error.child_node, ListConfig) and scalar


def _is_unknown_key(error: OmegaConfBaseException) -> bool:
    return isinstance(error, AttributeError | KeyError) and dataclasses.is_dataclass(error.object_type)


def _is_unknown_entry(error: OmegaConfBaseException) -> bool:
    """Return whether a mapping from names to dataclasses lacks the given name."""
    values = get_args(error.ref_type)[1:]
    return isinstance(error, AttributeError | KeyError) and any(map(dataclasses.is_dataclass, values))


def _unknown_key(error: OmegaConfBaseException, place: str) -> str:
    """Return a message with a suggestion, and the keys of the dataclass that lacks the given key."""
    schema, key = error.object_type, str(error.key)
    own = [field.name for field in dataclasses.fields(schema)]  # type: ignore[arg-type]
    chosen = group_of(schema)
    owner = "=".join(chosen) if chosen else place.rpartition(".")[0] or "the top level"
    known = known_keys()
    in_other_sections = [dotted for dotted in known if "." in dotted and dotted.rpartition(".")[2] == key]
    hint = _did_you_mean(in_other_sections) or _most_similar(key, own)
    if options := known.get(f"{chosen[0] if chosen else ''}.{key}"):
        hint = f"; it is a key of {', '.join(options)}"
    if schema is Config and not hint:
        hint = _did_you_mean(_keys_like(key))
    return f"{place}: no such key{hint}\nKeys of {owner}: {', '.join(own)}"


def _most_similar(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the most similar of the known names; "" if none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _keys_like(name: str) -> list[str]:
    """Return the dotted keys that are, or end with, this name; otherwise, the keys with the most similar name."""
    known = known_keys()
    if name in known:
        return [name]
    last = {dotted: dotted.rpartition(".")[2] for dotted in known}
    close = [name] if name in last.values() else difflib.get_close_matches(name, last.values(), 1, _LEAST_SIMILARITY)
    return [dotted for dotted, end in last.items() if end in close]


def _did_you_mean(keys: Sequence[str]) -> str:
    """Return "; did you mean ...?", or "" if there are no keys. A key of only some options is shown with these."""
    known = known_keys()
    partial = {key: known[key] for key in keys if 0 < len(known[key]) < len(GROUPS.get(key.partition(".")[0], ()))}
    shown = [repr(key) + (f" (of {', '.join(partial[key])})" if key in partial else "") for key in keys]
    return f"; did you mean {' or '.join(shown)}?" if shown else ""
