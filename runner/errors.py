"""The classes of all errors that runner reports to users, each with its exit code; checks of values of a key.

A message names the place of the error, the value, the expectation and the remedy. An exception of another class that
reaches the user is a defect of runner.
"""

import signal
from collections.abc import Collection


class RunnerError(Exception):
    """Base of all errors that end a run with a message instead of a traceback."""

    exit_code = 1


class ConfigError(RunnerError):
    """The configuration is wrong: unknown key, wrong type, missing value or impossible combination."""

    exit_code = 2


def require(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise ConfigError, naming the key of the configuration and its value, unless the condition holds."""
    if not holds:
        raise ConfigError(f"{key}={value}: expected {expected}")


def require_one_of(key: str, value: str | None, options: Collection[str], *, optional: bool = False) -> None:
    """Raise ConfigError, listing the options, unless the value is one of them. optional: whether None is allowed."""
    expected = f"one of {', '.join(options)}{', or null' if optional else ''}"
    require(value in options or (optional and value is None), key, repr(value), expected)


class DataError(RunnerError):
    """A dataset is missing or corrupt, or does not fit the configuration."""

    exit_code = 3


class ResourceError(RunnerError):
    """The machine lacks a requested resource: memory, disk space, a writable directory, a library."""

    exit_code = 4


def as_runner_error(error: RunnerError | MemoryError) -> RunnerError:
    """Return a RunnerError unchanged, or the ResourceError that replaces a MemoryError."""
    if isinstance(error, RunnerError):
        return error
    resource_error = ResourceError(
        f"out of memory: {str(error) or 'an allocation failed'}; use a smaller batch or model, or raise the memory "
        "limits of the process"
    )
    resource_error.__cause__ = error
    return resource_error


class NumericError(RunnerError):
    """A value that must be finite is not."""

    exit_code = 5


class NonFiniteLossError(NumericError):
    """The loss of step ``step`` is not finite; the node that caused it is not known yet."""

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step


class DivergenceError(NumericError):
    """The training loss exploded but stayed finite."""


class CheckpointError(RunnerError):
    """A checkpoint is missing or damaged, or belongs to another network."""

    exit_code = 6


class ClusterError(RunnerError):
    """A worker died, did not answer or did not join."""

    exit_code = 7


class WorkerLostError(ClusterError):
    """A worker or parameter server died, is frozen or lost a connection; new processes can repeat the step.

    worker: name of the process. cause: the kind of the fault, such as "was killed by SIGKILL". by_chance: whether the
    same fault can occur twice in one step by chance, because its origin may be outside the process. out_of_memory:
    whether the kernel probably killed the process for lack of memory.
    """

    def __init__(self, worker: str, cause: str, message: str, *, by_chance: bool, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.worker = worker
        self.cause = cause
        self.by_chance = by_chance
        self.out_of_memory = out_of_memory


class NotStartedAgainError(ClusterError):
    """Lost processes were not started again. remaining: number of workers that the run still has."""

    def __init__(self, message: str, remaining: int) -> None:
        super().__init__(message)
        self.remaining = remaining


class SecurityError(RunnerError):
    """A peer or a file broke a security rule."""

    exit_code = 8


class DirectoryInUseError(RunnerError):
    """Another run is using the run directory."""

    exit_code = 9


class Interrupted(RunnerError):
    """A signal stopped the run, usually after a checkpoint was committed.

    ``exit_code`` follows the shell's convention: 128 + signal number (130 for Ctrl-C, 143 for SIGTERM).
    """

    def __init__(self, signum: int, message: str = "") -> None:
        super().__init__(message or f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum
