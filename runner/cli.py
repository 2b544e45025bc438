"""The command ``runner``: dispatch of its verbs. Without a verb, runner trains the configuration that Hydra composes.

Slow modules are imported only when they are needed, so that ``runner --help`` answers immediately.
"""

import argparse
import difflib
import gc
import importlib
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.commands.plugins import install_plugins, split_plugins
from runner.config.command_line import misplaced_verb
from runner.errors import ConfigError, RunnerError, SecurityError, as_runner_error
from runner.system.console import DEBUG_OPTION, SUPERVISE_OPTION, SUPERVISOR_OPTION, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's name) and return its exit code.

    A RunnerError is printed as one message on standard error and gives the exit code of its class; a MemoryError is
    treated as a ResourceError. An interruption and a closed output also give exit codes. Other exceptions are raised.
    """
    gc.set_threshold(COLLECTED)
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = DEBUG_OPTION in arguments or os.environ.get("HYDRA_FULL_ERROR") == "1"
    arguments = [argument for argument in arguments if argument != DEBUG_OPTION]
    try:
        code = _dispatch(arguments, debug=debug)
        sys.stdout.flush()
        return code
    except (RunnerError, MemoryError) as error:
        print_error(as_runner_error(error), debug=debug)
        return as_runner_error(error).exit_code
    except KeyboardInterrupt:
        print("runner: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _output_was_closed():
            raise
        return 128 + signal.SIGPIPE
    except SystemExit as stop:  # argparse or Hydra has printed the reason
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _output_was_closed() -> bool:
    """Return whether the reader of standard output closed it, as ``| head`` does; if so, discard all further output."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, select.POLLERR)
    if not poll.poll(0):
        return False
    # The interpreter flushes standard output once more when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _dispatch(arguments: list[str], *, debug: bool) -> int:
    if any(argument.startswith("query=") for argument in arguments):
        from runner.commands.completion import complete

        return complete(arguments, [name for name, text in VERBS.items() if text])
    if any(argument.startswith("install=") for argument in arguments):
        from runner.commands.completion import install

        return install(arguments)
    arguments = _end_with_supervisor(arguments)
    references, arguments = split_plugins(arguments)
    supervised = SUPERVISE_OPTION in arguments
    arguments = [argument for argument in arguments if argument != SUPERVISE_OPTION]
    first = arguments[0] if arguments else ""
    if first in VERBS:
        if supervised:
            raise ConfigError(f"{SUPERVISE_OPTION} watches a training run; leave it out of `runner {first}`")
        return _run_verb(first, references, arguments[1:], debug=debug)
    if "--help" in arguments or "-h" in arguments:
        from runner.commands.help_text import help_text
        from runner.config.conf_dir import conf_dir

        print(help_text(conf_dir(), {name: text for name, text in VERBS.items() if text}))
        return 0
    if "--version" in arguments:
        from runner.records.summary import versions

        print(f"runner {versions()['runner']}")
        return 0
    _refuse(arguments)
    install_plugins(references)
    if supervised:
        from runner.commands.supervise import supervise

        return supervise(arguments, references, options=[DEBUG_OPTION] if debug else [])
    from runner.commands.train import train

    return train(arguments, debug=debug)


def _end_with_supervisor(arguments: Sequence[str]) -> list[str]:
    """If --supervisor is given, have Linux send SIGTERM to this process when the supervisor dies; remove the option."""
    option = f"{SUPERVISOR_OPTION}="
    for argument in arguments:
        if argument.startswith(option):
            from runner.engine.cluster.processes import die_with_parent

            die_with_parent(int(argument.removeprefix(option)), signal.SIGTERM)
    return [argument for argument in arguments if not argument.startswith(option)]


def _run_verb(name: str, references: Sequence[str], arguments: Sequence[str], *, debug: bool) -> int:
    if name == WORKER:
        _die_with_master(arguments)
    installed = dict[str, str]()
    if name not in _WITHOUT_PLUGINS:
        installed = install_plugins(references)
    elif references:
        raise ConfigError(f"--plugin {references[0]}: `runner {name}` uses no plugins; leave it out")
    if name == WORKER:
        return _worker(arguments, installed)
    module = importlib.import_module(_MODULES.get(name, f"runner.commands.{name}"))
    code: int = module.main([DEBUG_OPTION, *arguments] if debug and name in _WITH_JOBS else arguments)
    return code


def _refuse(arguments: Sequence[str]) -> None:
    """Raise ConfigError for an unknown or misplaced verb, SecurityError for an option that loads a pickle."""
    first = arguments[0] if arguments else ""
    if first.isidentifier():
        verbs = [name for name, text in VERBS.items() if text]
        close = difflib.get_close_matches(first, verbs, n=1)
        hint = f"did you mean {close[0]!r}? Expected" if close else "expected"
        raise ConfigError(
            f"unknown verb {first!r}: {hint} one of {', '.join(verbs)}, or overrides such as seed=1 or resume=DIR; "
            "without a verb, runner trains"
        )
    late = misplaced_verb(arguments, VERBS)
    if late is not None:
        raise ConfigError(f"verb {late!r} after {first}: expected the verb first, as in `runner {late} ...`")
    # argparse accepts abbreviations of --experimental-rerun, and no other option of Hydra starts with "--ex".
    if any(argument.startswith("--ex") for argument in arguments):
        raise SecurityError(
            "--experimental-rerun executes code of a pickle; repeat a stored run with `runner rerun DIR`, or with "
            "`runner -cp DIR -cn config`, where DIR is the absolute path of its directory"
        )


def _worker_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="runner worker",
        description="Join a run as one of its processes. The run prints the command to type if cluster/launcher=hosts.",
    )
    parser.add_argument("--join", required=True, metavar="ADDRESS", help="address that the run printed")
    parser.add_argument(
        "--key", required=True, metavar="FILE", type=Path, help="key file of mode 0600, written by the run"
    )
    parser.add_argument("--parent", type=int, help="process id of the run, if the run started this process")
    parser.add_argument("--host", default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _die_with_master(arguments: Sequence[str]) -> None:
    """Have Linux kill this worker when the master that started it dies, even while NumPy is still being imported."""
    parent = _worker_options(arguments).parent
    if parent is not None:
        from runner.engine.cluster.processes import die_with_parent

        die_with_parent(parent)


def _worker(arguments: Sequence[str], plugins: Mapping[str, str]) -> int:
    from runner.data.source import source_from_config
    from runner.engine.cluster.worker_process import main as worker_main
    from runner.records.summary import joining_facts

    options = _worker_options(arguments)
    given = (options.join, options.key, options.host)
    facts = joining_facts(plugins, remote=options.join.startswith("tcp://"))
    return worker_main(*given, facts, lambda description: source_from_config(**description))


WORKER = "worker"

COLLECTED = 50_000
"""Number of new objects after which Python searches for reference cycles; imports and plans create many objects."""

VERBS = {
    "simulate": "predict times, traffic and memory on described hardware; trains nothing",
    "recommend": "rank strategies by predicted times on described hardware; trains nothing",
    "profile": "measure instructions and messages on this machine for simulations; trains nothing",
    "explain": "show parameters, cost, placement and memory of a configuration; trains nothing",
    "rerun": "train a stored run again and compare the weights",
    "compare": "show the differences between two runs: configuration, code, machine, results",
    "list": "list models, data, optimizers, schedules, strategies, callbacks, experiments, debug presets",
    "eval": "score a trained network on its own dataset or another",
    "adapt": "adapt a trained network to another domain without its labels",
    "predict": "predict the classes or numbers of images or arrays with a trained network",
    "table": "rebuild the table of a paper (list, show, run, check, export)",
    "sweep": "finish an interrupted sweep (resume DIR), or print its table (status DIR)",
    "data": "list the datasets, fetch one, convert one to records, or inspect one",
    "ui": "show the recorded runs in the browser (MLflow, on this machine only)",
    "sync": "write records that wait in run directories (DIR...) to the tracking store",
    "doctor": "list the usable hardware, the installed libraries and the missing ones",
    "new": "write a template of your own task, model, optimizer, strategy, callback, table, ...",
    WORKER: "",
}
"""Verb -> its line in the help; empty for an internal command."""

_MODULES = {"eval": "runner.commands.evaluate"}
"""Verb -> the module whose ``main`` runs it. For verbs that are not listed, the module is ``runner.commands.VERB``."""

_WITHOUT_PLUGINS = ("ui", "sync", "doctor", "new")

_WITH_JOBS = ("sweep", "simulate", "table")
"""Verbs that run jobs, whose tracebacks --debug prints."""
