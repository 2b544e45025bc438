"""The origin of a run: its command, its machine, and the commits and changes of its code."""

import hashlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.system.machine import usable_cores, usable_memory
from runner.system.redaction import redact_code, redact_overrides

MAX_DIFF_BYTES = 1 << 20  # largest size in bytes of the stored changes of one repository
MAX_UNTRACKED = 100
_GIT_TIMEOUT_S = 10.0
_READ_ONLY = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")


@dataclass(frozen=True)
class CodeState:
    """The state of one repository.

    folder: its top folder. commit: 40 hex digits, "" if there is none. diff_sha256, diff_bytes: digest and size
    of all changes of tracked files against the commit; "" and 0 if there are none. untracked: the first 100 files and
    folders that git neither tracks nor ignores, relative to ``folder``.
    """

    folder: str
    commit: str
    diff_sha256: str
    diff_bytes: int
    untracked: list[str]


@dataclass(frozen=True)
class Code:
    """The state of a repository, and its changes as text: at most :data:`MAX_DIFF_BYTES`, without secrets."""

    state: CodeState
    diff: str


def code_of(folders: Iterable[Path], owned: Iterable[Path] = ()) -> list[Code]:
    """Return the repositories that contain ``folders``, then those that track a file of ``owned``, each only once.

    Folders outside any repository are ignored. Files that their repository does not track, such as those of a
    virtual environment inside it, are ignored too. If git is not installed, the list is empty.
    """
    tracked = [file for file in owned if git(file.parent, "ls-files", "--error-unmatch", file.name) is not None]
    holders = [*folders, *(file.parent for file in tracked)]
    tops = [top for folder in holders if (top := git(folder, "rev-parse", "--show-toplevel"))]
    return [code for top in dict.fromkeys(tops) if (code := _code(Path(top))) is not None]


def by_name(*runs: Sequence[CodeState]) -> list[dict[str, CodeState]]:
    """For each run, return name -> repository. A name is the end of the folder's path, long enough to be unique.

    The number of parts is the same for all runs, so that a repository that was moved between runs keeps its name.
    """
    length = max((_unique_length([code.folder for code in codes]) for codes in runs), default=1)
    return [{_end(code.folder, length): code for code in codes} for codes in runs]


def _unique_length(folders: Sequence[str]) -> int:
    """Return the smallest number of parts at the end of the paths that distinguishes all folders."""
    longest = max((len(Path(folder).parts) for folder in folders), default=1)
    lengths = range(1, longest + 1)
    return next((n for n in lengths if len({_end(folder, n) for folder in folders}) == len(set(folders))), longest)


def _end(folder: str, length: int) -> str:
    return str(Path(*Path(folder).parts[-length:]))


def text_of(codes: Iterable[Code]) -> str:
    """Return the changes of all repositories as one text that names each repository and marks changes cut off."""
    text = ""
    for code in codes:
        if code.diff:
            text += f"# changes in {code.state.folder} since commit {code.state.commit}\n{code.diff.rstrip()}\n"
            if code.state.diff_bytes > MAX_DIFF_BYTES:
                text += f"# cut: {MAX_DIFF_BYTES:,} of {code.state.diff_bytes:,} bytes are shown\n"
    return text


def _code(top: Path) -> Code | None:
    """Return the state and the changes of a repository; None if git fails or takes too long."""
    commit = git(top, "rev-parse", "--verify", "--quiet", "HEAD") or ""
    untracked = git(top, "ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory")
    changes = _changes(top) if commit else (b"", hashlib.sha256().hexdigest(), 0)
    if untracked is None or changes is None:
        return None
    kept, digest, size = changes
    state = CodeState(str(top), commit, digest if size else "", size, untracked.splitlines()[:MAX_UNTRACKED])
    return Code(state, redact_code(kept.decode(errors="replace")))


def _changes(top: Path) -> tuple[bytes, str, int] | None:
    """Return at most MAX_DIFF_BYTES of the changes of tracked files, and SHA-256 and size of all; None on failure."""
    command = [*_READ_ONLY, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD"]
    with tempfile.TemporaryFile() as file:
        try:
            subprocess.run(command, cwd=top, stdout=file, stderr=subprocess.DEVNULL, timeout=_GIT_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        file.seek(0)
        return file.read(MAX_DIFF_BYTES), digest, size


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command that changes nothing; None if it fails, is not installed or takes too long."""
    command = [*_READ_ONLY, *arguments]
    try:
        answer = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


_PACKAGE_FILE = Path(__file__).resolve().parents[1] / "__init__.py"


@dataclass(frozen=True)
class Provenance:
    """The origin of a run, a part of summary.json.

    command_line: arguments of the process, quoted for a shell, without secrets. working_directory: the directory in
    which the process started. cores, memory_bytes: usable cores and memory. code: the repositories, if any, that hold
    the working directory and the package; ``code.diff`` has the uncommitted changes.
    """

    command_line: str
    working_directory: str
    cores: int
    memory_bytes: int
    code: list[CodeState] = field(default_factory=list)


def provenance_here() -> tuple[Provenance, str]:
    """Return the origin of a run that this process starts now, and the changes of its code as text."""
    folder = Path.cwd()
    codes = code_of([folder], [_PACKAGE_FILE])
    line, states = command_line(sys.orig_argv), [code.state for code in codes]
    return Provenance(line, str(folder), usable_cores(), usable_memory(), states), text_of(codes)


def command_line(arguments: Sequence[str]) -> str:
    """Return a command line that can be typed into a shell, with values that look like secrets redacted."""
    return shlex.join(redact_overrides(arguments))


def provenance_tags(found: Provenance) -> dict[str, str]:
    """Return a provenance as tags for a tracker: tag -> text."""
    tags = {
        "runner.command_line": found.command_line,
        "runner.working_directory": found.working_directory,
        "runner.cores": str(found.cores),
        "runner.memory_bytes": str(found.memory_bytes),
    }
    (named,) = by_name(found.code)
    for name, code in named.items():
        changed = f", changed (SHA-256 {code.diff_sha256})" if code.diff_bytes else ""
        untracked = f", untracked: {', '.join(code.untracked)}" if code.untracked else ""
        tags[f"runner.code.{name}"] = f"{code.commit or 'no commit'}{changed}{untracked}"
    return tags
