"""Completion in a shell of verbs, their subcommands and run directories. Hydra completes groups, options and keys.

``runner -sc install=SHELL`` prints Hydra's shell function. The function sets COMP_LINE to the typed line
and, except in fish, COMP_POINT to the position of the cursor. Then it calls ``runner -sc query=SHELL`` and offers the
printed words.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from runner.commands.plugins import split_plugins
from runner.config.command_line import split_arguments
from runner.config.launcher import variables
from runner.errors import RunnerError
from runner.records.run_directory import RUN_FILE
from runner.records.stored_run import outputs_below
from runner.sweeps.plan import PLAN_FILE
from runner.system.console import DEBUG_OPTION

LINE = "COMP_LINE"
CURSOR = "COMP_POINT"

INSTALL = "install="  # the beginning of the argument that requests the shell function
_BEFORE = {
    # Hydra's function for zsh uses the completion of bash.
    "zsh": """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
autoload -Uz bashcompinit && bashcompinit"""
}
"""Shell -> commands that have to precede Hydra's function."""

_AFTER = {
    # Hydra's function for fish never offers files; other shells offer files if there are no words.
    "fish": """\
complete -c runner -l plugin -l config-dir -l config-path -r -F
complete -c runner -n '__fish_seen_subcommand_from predict' -F"""
}
"""Shell -> commands that have to follow Hydra's function."""

DIRECTORIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("rerun", "compare", "eval", "adapt", "predict"), (RUN_FILE,)),
    "sweep": (PLAN_FILE,),
    "sync": (RUN_FILE, PLAN_FILE),
}
"""Verb whose arguments are directories -> the files that mark such a directory."""

KEYS = ("resume=", "init_from=")  # overrides whose value is the directory of a run
WORDS = {
    "sweep": ("resume", "status", "best", "plot"),
    "data": ("fetch", "list", "convert", "inspect"),
    "table": ("list", "show", "run", "check", "export"),
}
"""Verb -> the words that can follow it."""

OVERRIDES = ("explain", "profile", "recommend", "simulate")  # verbs that take the overrides of a training command


def install(arguments: Sequence[str]) -> int:
    """Print the shell commands that enable completion for ``runner``; return the exit code."""
    from runner.commands.train import train

    shell = next(argument.removeprefix(INSTALL) for argument in arguments if argument.startswith(INSTALL))
    print(_BEFORE.get(shell, ""))
    code = train(arguments)
    print(_AFTER.get(shell, ""))
    return code


def complete(arguments: Sequence[str], verbs: Sequence[str]) -> int:
    """Print the completions of the text before the cursor, Hydra's included if an override can follow; return 0."""
    line, cursor = os.environ.get(LINE, ""), os.environ.get(CURSOR, "")
    line = line[: int(cursor)] if cursor.isdecimal() else line
    before = line.split()[1:]
    word = before.pop() if before and not line[-1].isspace() else ""
    # A line that cannot be completed has no completions; an error would be printed into the line that the user types.
    with suppress(RunnerError, SystemExit):
        _, before = split_plugins([argument for argument in before if argument != DEBUG_OPTION])
        verb = before[0] if before and before[0] in verbs else None
        found = list(_words(before, word, verb, verbs))
        # Hydra's function splits the printed words at blanks, so words with blanks are left out.
        print("\n".join(name for name in found if name.startswith(word) and len(name.split()) == 1))
        if (verb is None or verb in OVERRIDES) and not word.startswith(("-", *KEYS)):
            from runner.commands.train import train

            # Hydra would print an error for a verb or an unknown option in the line.
            overrides, _ = split_arguments(before[verb is not None :])
            with variables({LINE: " ".join(["runner", *overrides, word])}):
                train(arguments)
    return 0


def _words(before: Sequence[str], word: str, verb: str | None, verbs: Sequence[str]) -> Iterator[str]:
    """Yield the words that can follow ``before``, except Hydra's words. word: the typed part of the next argument."""
    for key in KEYS:
        if word.startswith(key) and verb is None:
            yield from (key + path for path in _directories(word.removeprefix(key), (RUN_FILE,)))
    if not before:
        yield from verbs
    elif len(before) == 1 and verb in WORDS:
        yield from WORDS[verb]
    elif verb in DIRECTORIES:
        yield from _directories(word, DIRECTORIES[verb])


def _directories(path: str, markers: Sequence[str]) -> Iterator[str]:
    """Yield the directories of runs and sweeps that contain a file named in ``markers``.

    If none of them begins with ``path``, yield the existing directories that can continue ``path``.
    """
    found = [str(place) for marker in markers for place in outputs_below(Path(), marker)]
    if any(place.startswith(path) for place in found):
        yield from found
        return
    parent = path[: path.rfind("/") + 1]
    with suppress(OSError):  # the typed path need not exist
        for entry in os.scandir(parent or "."):
            if entry.is_dir() and (path != parent or not entry.name.startswith(".")):
                yield f"{parent}{entry.name}/"
