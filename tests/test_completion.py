"""Completion of command lines: the words that runner offers, and the effect of the tabulator key in real shells."""

import fcntl
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from runner.cli import VERBS, main
from runner.commands.completion import DIRECTORIES, OVERRIDES, WORDS
from runner.config.groups import GROUPS
from tests.refusal import Capture


def test_the_completion_script_calls_this_program(capsys: Capture):
    assert main(["-sc", "install=bash"]) == 0
    assert "-F hydra_bash_completion runner\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("runner optimizer=", {f"optimizer={name}" for name in GROUPS["optimizer"]}),
        ("runner train.ep", {"train.epochs="}),
        ("runner experiment=mnist", {f"experiment=mnist_{name}" for name in ("downpour", "lenet", "sandblaster")}),
        ("runner ex", {"explain", "experiment="}),
        ("runner explain --config-dir mine schedule=st", {"schedule=step"}),
        ("runner --plugin mine.py swe", {"sweep"}),
        ("runner sweep ", {"resume", "status", "best", "plot"}),
        ("runner table sh", {"show"}),
        ("runner profile schedule=st", {"schedule=step"}),
        ("runner adapt m", {"multirun/day/night/0"}),
        ("runner rerun ", {"outputs/day/noon", "multirun/day/night/0"}),
        ("runner --debug compare outputs/day/noon m", {"multirun/day/night/0"}),
        ("runner eval outputs/day/noon/", {"outputs/day/noon/checkpoints/"}),
        ("runner eval m", {"multirun/day/night/0"}),
        ("runner eval mi", {"mine/"}),
        ("runner eval my", set()),
        ("runner sync m", {"multirun/day/night/0", "multirun/day/night"}),
        ("runner sweep resume ", {"multirun/day/night"}),
        ("runner resume=o", {"resume=outputs/day/noon"}),
        ("runner model=mlp init_from=mi", {"init_from=mine/"}),
        ("runner resume=absent/", set()),
        ("runner doctor ", set()),
        ("runner --plugin ", set()),
        ("runner model=mpl l", set()),
        ("runner --conf", set()),
        ("runner expl| model=mlp", {"explain"}),
    ],
)
def test_completion_offers_verbs_directories_options_and_keys(
    line: str, offers: set[str], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    """A stroke marks the cursor, which is otherwise at the end of the line."""
    for place in ("outputs/day/noon/checkpoints", "multirun/day/night/0", "mine", "my runs", ".hidden"):
        (folder / place).mkdir(parents=True)
    for file in ("outputs/day/noon/run.json", "multirun/day/night/plan.json", "multirun/day/night/0/run.json"):
        (folder / file).touch()
    monkeypatch.setenv("COMP_LINE", line.replace("|", ""))
    monkeypatch.setenv("COMP_POINT", str(len(line.partition("|")[0])))
    assert main(["-sc", "query=bash"]) == 0
    out, err = capsys.readouterr()
    assert (set(out.split()), err) == (offers, "")


@pytest.mark.parametrize("verb", [name for name, text in VERBS.items() if text])
def test_the_first_argument_in_the_help_of_a_verb_decides_how_it_is_completed(verb: str, capsys: Capture):
    assert main([verb, "--help"]) == 0
    found = re.search(r"^positional arguments:\n  (\S+)", capsys.readouterr().out, re.M)
    first = found[1] if found else ""
    assert (verb in OVERRIDES) == (first == "KEY=VALUE")
    assert (verb in DIRECTORIES) == (first in ("CHECKPOINT", "RUN", "DIR") or verb == "sweep")
    assert (f"{{{','.join(WORDS.get(verb, ()))}}}" == first) == first.startswith("{")


SHELLS = {
    "bash": (
        ["--norc", "--noprofile"],
        'eval "$(runner -sc install=bash)"',
        r"""bind -x '"\C-t": echo "$READLINE_LINE" >> typed; READLINE_LINE='""",
    ),
    "zsh": (
        ["-f"],
        'eval "$(runner -sc install=zsh)"',
        "keep() { print -r -- $BUFFER >> typed; BUFFER= }; zle -N keep; bindkey '^T' keep",
    ),
    "fish": (
        ["--no-config"],
        "runner -sc install=fish | source",
        r"""bind \ct 'commandline >> typed; commandline ""'""",
    ),
}
"""Shell -> options for a start without files of the user, the documented command, and a command that makes Control-T
append the typed line to a file and clear it."""

CONTROL_T = "\x14"


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_the_tabulator_completes_words_in_a_shell(shell: str, folder: Path):
    """Type lines into a shell in a terminal; each is completed by the tabulator, at the end or inside of the line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "outputs/day/noon").mkdir(parents=True)
    (folder / "outputs/day/noon/run.json").touch()
    (folder / "mine.py").touch()
    start_of_line, next_character = "\x01", "\x06"
    typed = {
        "runner expl": "runner explain",
        "runner resume=ou": "runner resume=outputs/day/noon",
        "runner rerun o": "runner rerun outputs/day/noon",
        "runner model=mlp optimizer=mo": "runner model=mlp optimizer=momentum",
        "runner --plugin mi": "runner --plugin mine.py",
        f"runner train.ep seed=1{start_of_line}{next_character * 15}": "runner train.epochs= seed=1",
    }
    options, install, keep = SHELLS[shell]
    lines = "".join(f"{line}\t{CONTROL_T}" for line in typed)
    _type([shell, *options, "-i"], f"{install}\n{keep}\n{lines}exit\n")
    # fish puts a blank after a completed word.
    assert [line.rstrip() for line in (folder / "typed").read_text().splitlines()] == list(typed.values())


def _type(command: list[str], text: str) -> None:
    """Start a program in a new terminal, type a text, and wait until the program ends."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"PATH": path, "TERM": "xterm", "HOME": os.getcwd()},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    os.write(master, text.encode())
    try:
        while os.read(master, 65536):  # a terminal whose reader stops would block the program
            pass
    except OSError:
        pass  # Linux reports the end of the last program in a terminal as an error
    finally:
        os.close(master)  # ends a shell that still runs
        process.wait()
