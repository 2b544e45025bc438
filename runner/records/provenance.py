"""The origin of a run: its command, its machine, and the commits and changes of its code."""

from __future__ import annotations

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

MAX_DIFF_BYTES = 1 << 20
"""Of the changes in one repository so much is kept."""
MAX_UNTRACKED = 100
_GIT_TIMEOUT_S = 10.0
_READ_ONLY = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")


@dataclass(frozen=True)
class CodeState:
    """One repository.

    folder: its top. commit: 40 digits, "" before the first one. diff_sha256, diff_bytes: of all changes of tracked
    files against the commit; "" and 0 where there are none. untracked: files and folders git neither tracks nor
    ignores, relative to ``folder``, the first 100.
    """

    folder: str
    commit: str
    diff_sha256: str
    diff_bytes: int
    untracked: list[str]


@dataclass(frozen=True)
class Code:
    """A repository's state, and its changes as text, cut at :data:`MAX_DIFF_BYTES`, without what looks secret."""

    state: CodeState
    diff: str

    @property
    def cut(self) -> bool:
        """Whether there are more changes than are kept."""
        return self.state.diff_bytes > MAX_DIFF_BYTES


def code_of(folders: Iterable[Path], owned: Iterable[Path] = ()) -> list[Code]:
    """The repositories that ``folders`` lie in, and those that track a file of ``owned``; each once, in this order.

    A folder outside of any repository adds nothing, nor does a file that its repository does not track, such as one
    of an environment that lies in somebody's repository. Nothing is found without git.
    """
    holders = [*folders, *(file.parent for file in owned if _is_tracked(file))]
    tops = [top for folder in holders if (top := _git(folder, "rev-parse", "--show-toplevel"))]
    return [code for top in dict.fromkeys(tops) if (code := _code(Path(top))) is not None]


def _is_tracked(file: Path) -> bool:
    return _git(file.parent, "ls-files", "--error-unmatch", file.name) is not None


def by_name(*runs: Sequence[CodeState]) -> list[dict[str, CodeState]]:
    """The repositories of each run by name: the end of their path, as much of it as tells those of one run apart.

    As much in all runs, so that one that lay elsewhere in another run has the same name there: most often that of its
    folder alone.
    """
    length = max((_telling_length([code.folder for code in codes]) for codes in runs), default=1)
    return [{_end(code.folder, length): code for code in codes} for codes in runs]


def _telling_length(folders: Sequence[str]) -> int:
    """How many parts of their paths, counted from the end, tell folders apart."""
    whole = max((len(Path(folder).parts) for folder in folders), default=1)
    lengths = range(1, whole + 1)
    return next((n for n in lengths if len({_end(folder, n) for folder in folders}) == len(set(folders))), whole)


def _end(folder: str, length: int) -> str:
    return str(Path(*Path(folder).parts[-length:]))


def text_of(codes: Iterable[Code]) -> str:
    """The changes of all repositories as one text, which says whose they are and where they were cut."""
    return "".join(_section(code) for code in codes if code.diff)


def _section(code: Code) -> str:
    state = code.state
    end = f"# cut: {MAX_DIFF_BYTES:,} of {state.diff_bytes:,} bytes are here\n" if code.cut else ""
    return f"# changes in {state.folder} since commit {state.commit or '(none)'}\n{code.diff.rstrip()}\n{end}"


def _code(top: Path) -> Code | None:
    """State and changes of a repository; None where git cannot tell in time."""
    commit = _git(top, "rev-parse", "--verify", "--quiet", "HEAD") or ""
    untracked = _git(top, "ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory")
    changes = _changes(top) if commit else (b"", hashlib.sha256().hexdigest(), 0)
    if untracked is None or changes is None:
        return None
    kept, digest, size = changes
    state = CodeState(str(top), commit, digest if size else "", size, untracked.splitlines()[:MAX_UNTRACKED])
    return Code(state, redact_code(kept.decode(errors="replace")))


def _changes(top: Path) -> tuple[bytes, str, int] | None:
    """The first bytes of the changes of tracked files, the SHA-256 and the size of all of them."""
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


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails, is not there or takes too long."""
    try:
        answer = subprocess.run(
            [*_READ_ONLY, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


_PACKAGE_FILE = Path(__file__).resolve().parents[1] / "__init__.py"


@dataclass(frozen=True)
class Provenance:
    """Part of summary.json.

    command_line: the process's own, quoted for a shell, secrets hidden. working_directory: where it was started.
    cores, memory_bytes: what it could use of the machine. code: the repository it was started in and that of the
    package, where there are such; their changes are in ``code.diff``.
    """

    command_line: str
    working_directory: str
    cores: int
    memory_bytes: int
    code: list[CodeState] = field(default_factory=list)


def provenance_here() -> tuple[Provenance, str]:
    """Where a run comes from that is started by this process now, and the changes of its code as text."""
    folder = Path.cwd()
    codes = code_of([folder], [_PACKAGE_FILE])
    found = Provenance(
        command_line(sys.orig_argv), str(folder), usable_cores(), usable_memory(), [code.state for code in codes]
    )
    return found, text_of(codes)


def command_line(arguments: Sequence[str]) -> str:
    """A command as it can be typed into a shell, with values that look like secrets hidden."""
    return shlex.join(redact_overrides(arguments))


def provenance_tags(found: Provenance) -> dict[str, str]:
    """The same as facts for a tracker, by name."""
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
