"""A fake training entry point that records its calls and returns a summary, or raises an error that a test sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.callback import Callback
from runner.config.launcher import SweepPlace
from runner.config.schema import Config
from runner.records.summary import Summary


@dataclass
class Call:
    """The arguments of one call of ``runner.training.run.run``."""

    config: Config
    run_dir: Path
    overrides: list[str]
    sweep: SweepPlace | None
    resume: bool
    repeats: str = ""


@dataclass
class FakeTraining:
    """A replacement of ``runner.training.run.run``.

    act: a function called in each run. An exception of ``act`` ends the run. metric: the only metric of the summary.
    """

    act: Callable[[Call], None] = lambda call: None
    metric: str = "test/accuracy"
    calls: list[Call] = field(default_factory=list)

    def run(
        self,
        config: Config,
        run_dir: Path,
        *,
        overrides: Sequence[str],
        sweep: SweepPlace | None,
        resume: bool,
        repeats: str = "",
        callbacks: Sequence[Callback] = (),
    ) -> Summary:
        """Record the call, call ``act``, and write and return the summary of a finished run."""
        call = Call(config, run_dir, list(overrides), sweep, resume, repeats)
        self.calls.append(call)
        self.act(call)
        summary = summary_of(call, self.metric)
        run_dir.mkdir(parents=True, exist_ok=True)
        summary.write(run_dir / "summary.json")
        return summary

    @property
    def only(self) -> Call:
        """Return the only call; fail unless there was exactly one."""
        (call,) = self.calls
        return call


def summary_of(call: Call, metric: str = "test/accuracy") -> Summary:
    """Return the summary of a finished run, in which the value of ``metric`` is a tenth of the seed."""
    return Summary(
        run_id="0123456789abcdef",
        status="finished",
        config_hash="",
        output_dir=str(call.run_dir),
        strategy=call.config.parallelism.name,
        workers=call.config.parallelism.workers,
        versions={},
        platform="",
        cpu_model="",
        overrides=call.overrides,
        headline={metric: call.config.seed / 10},
        monitor=metric,
        direction="max" if metric.endswith("accuracy") else "min",
    )
