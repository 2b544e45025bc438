"""The command ``runner``: a thin dispatcher over Hydra. Without a verb it trains.

Everything slow is imported where it is needed, so that ``runner --help`` answers at once.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.commands.plugins import install_plugins, split_plugins
from runner.config.command_line import misplaced_verb
from runner.errors import ConfigError, RunnerError, SecurityError, as_runner_error
from runner.system.console import DEBUG_OPTION, print_error


@dataclass(frozen=True)
class Verb:
    """A command other than training.

    text: its line in the help; empty for an internal one. plugins: whether it reads the tables that plugins add to.
    debug: whether it takes --debug itself, first. before_plugins: called with the arguments before plugins are loaded.
    """

    text: str
    run: Callable[[Sequence[str]], int]
    plugins: bool = True
    debug: bool = False
    before_plugins: Callable[[Sequence[str]], None] = lambda arguments: None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's name) and return its exit code.

    A RunnerError becomes one message on standard error and its class's exit code, a MemoryError those of ResourceError.
    Any other exception is a defect: it passes, and the interpreter prints its traceback and exits with 1.
    """
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
    except SystemExit as stop:  # argparse and Hydra have said why
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _output_was_closed() -> bool:
    """Whether nobody reads standard output any more, as behind ``| head``; the rest of it is then dropped."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, select.POLLERR)
    if not poll.poll(0):
        return False
    # The interpreter flushes once more on its way out.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _dispatch(arguments: list[str], *, debug: bool) -> int:
    references, arguments = split_plugins(arguments)
    first = arguments[0] if arguments else ""
    if first in VERBS:
        return _run_verb(first, references, arguments[1:], debug=debug)
    if "--help" in arguments or "-h" in arguments:
        return _help()
    if "--version" in arguments:
        return _version()
    _refuse_unknown_verb(first)
    _refuse_late_verb(arguments)
    _refuse_pickles(arguments)
    install_plugins(references)
    return _train(arguments, debug=debug)


def _run_verb(name: str, references: Sequence[str], arguments: Sequence[str], *, debug: bool) -> int:
    verb = VERBS[name]
    verb.before_plugins(arguments)
    if verb.plugins:
        install_plugins(references)
    elif references:
        raise ConfigError(f"--plugin {references[0]}: `runner {name}` reads no configuration; leave it out")
    return verb.run([DEBUG_OPTION, *arguments] if debug and verb.debug else arguments)


def _help() -> int:
    from runner.commands.help_text import help_text
    from runner.config.conf_dir import conf_dir

    print(help_text(conf_dir(), {name: verb.text for name, verb in VERBS.items() if verb.text}))
    return 0


def _version() -> int:
    from runner.records.summary import versions

    print(f"runner {versions()['runner']}")
    return 0


def _refuse_unknown_verb(first: str) -> None:
    if first.isidentifier():
        verbs = ", ".join(name for name, verb in VERBS.items() if verb.text)
        raise ConfigError(f"unknown verb {first!r}: expected one of {verbs}, or overrides such as seed=1")


def _refuse_late_verb(arguments: Sequence[str]) -> None:
    verb = misplaced_verb(arguments, VERBS)
    if verb is not None:
        raise ConfigError(f"verb {verb!r} stands behind {arguments[0]}: expected it first, as in `runner {verb} ...`")


def _refuse_pickles(arguments: Sequence[str]) -> None:
    # argparse accepts abbreviations, and no other option of Hydra starts with these letters.
    if any(argument.startswith("--ex") for argument in arguments):
        raise SecurityError(
            "--experimental-rerun executes what a pickle says; repeat a stored run with "
            "`runner -cp DIR -cn config`, DIR being the absolute path of its directory"
        )


def _train(arguments: Sequence[str], *, debug: bool) -> int:
    from runner.commands.train import train

    return train(arguments, debug=debug)


def _explain(arguments: Sequence[str]) -> int:
    from runner.commands.explain import explain

    return explain(arguments)


def _rerun(arguments: Sequence[str]) -> int:
    from runner.commands.rerun import main as rerun_main

    return rerun_main(arguments)


def _compare(arguments: Sequence[str]) -> int:
    from runner.commands.compare import main as compare_main

    return compare_main(arguments)


def _list(arguments: Sequence[str]) -> int:
    from runner.commands.list import main as list_main

    return list_main(arguments)


def _data(arguments: Sequence[str]) -> int:
    from runner.data.fetch import main as data_main

    data_main(arguments)
    return 0


def _eval(arguments: Sequence[str]) -> int:
    from runner.commands.evaluate import main as evaluate_main

    return evaluate_main(arguments)


def _predict(arguments: Sequence[str]) -> int:
    from runner.commands.predict import main as predict_main

    return predict_main(arguments)


def _ui(arguments: Sequence[str]) -> int:
    from runner.commands.ui import main as ui_main

    return ui_main(arguments)


def _doctor(arguments: Sequence[str]) -> int:
    from runner.commands.doctor import main as doctor_main

    return doctor_main(arguments)


def _new(arguments: Sequence[str]) -> int:
    from runner.commands.new import main as new_main

    return new_main(arguments)


def _sweep(arguments: Sequence[str]) -> int:
    from runner.commands.sweep import main as sweep_main

    return sweep_main(arguments)


def _sync(arguments: Sequence[str]) -> int:
    from runner.commands.sync import main as sync_main

    return sync_main(arguments)


def _worker_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="runner worker", description="One worker of a run (internal).")
    parser.add_argument("--address", required=True, help="where the master listens")
    parser.add_argument("--role", required=True, help="job of the device this process is, such as worker")
    parser.add_argument("--index", required=True, type=int, help="its task number")
    parser.add_argument("--token-file", required=True, type=Path, help="file of mode 0600 with the run's token")
    parser.add_argument("--run", required=True, help="identifier of the run")
    parser.add_argument("--epoch", required=True, type=int, help="number of this start of the run")
    parser.add_argument("--parent", required=True, type=int, help="process id of the master")
    parser.add_argument("--peers", required=True, type=int, help="number of workers")
    parser.add_argument("--servers", required=True, type=int, help="number of parameter servers")
    parser.add_argument("--queued-messages", required=True, type=int, help="most messages one peer may queue")
    return parser.parse_args(arguments)


def _die_with_master(arguments: Sequence[str]) -> None:
    """Have the kernel kill this worker when its master dies, before plugins and NumPy are imported."""
    from runner.engine.cluster.processes import die_with_parent

    die_with_parent(_worker_options(arguments).parent)


def _worker(arguments: Sequence[str]) -> int:
    from runner.data.source import source_from_config
    from runner.engine.cluster.worker_process import WorkerOptions
    from runner.engine.cluster.worker_process import main as worker_main

    options = vars(_worker_options(arguments))
    del options["parent"]
    return worker_main(WorkerOptions(**options), lambda description: source_from_config(**description))


VERBS: dict[str, Verb] = {
    "explain": Verb("what a configuration amounts to: parameters, cost, placement, memory; trains nothing", _explain),
    "rerun": Verb("train a stored run again and say whether it came to the same weights", _rerun),
    "compare": Verb("what is different between two runs: configuration, code, machine, results", _compare),
    "list": Verb("models, data, optimizers, schedules, strategies, experiments, debug presets, a line each", _list),
    "eval": Verb("score a trained network, on its own dataset or another", _eval),
    "predict": Verb("say which classes a trained network sees in images and arrays", _predict),
    "sweep": Verb(
        "take a sweep up again where it was stopped (resume DIR), or print its table (status DIR)", _sweep, debug=True
    ),
    "data": Verb("list the datasets, or fetch one into the cache", _data),
    "ui": Verb("show the recorded runs in the browser (MLflow, on this machine only)", _ui, plugins=False),
    "sync": Verb(
        "bring records that runs left in their directories (DIR...) to the tracking store", _sync, plugins=False
    ),
    "doctor": Verb("what this machine and installation offer, and what they lack", _doctor, plugins=False),
    "new": Verb(
        "write a starting point for a model, optimizer, dataset, strategy or op of your own", _new, plugins=False
    ),
    "worker": Verb("", _worker, before_plugins=_die_with_master),
}
