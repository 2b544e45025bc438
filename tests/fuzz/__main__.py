"""Run a campaign of mutated inputs: ``python -m tests.fuzz --help``."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.system.text import text_table
from tests.fuzz.campaign import Outcome, input_of, is_accepted, run
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run a campaign and print its outcome for each target; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Read mutated inputs.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; default: all")
    parser.add_argument(
        "--inputs", type=int, default=1_000_000, help="number of wire messages; other targets read a fraction of it"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="read only this input of the first target, in this process")
    options = parser.parse_args()
    chosen = options.targets or list(TARGETS)
    if unknown := set(chosen) - TARGETS.keys():
        parser.error(f"unknown targets {sorted(unknown)}; expected some of {', '.join(TARGETS)}")
    if options.number is not None:
        return _one(chosen[0], options.seed, options.number)
    outcomes = {}
    for name in chosen:
        outcomes[name] = run(TARGETS[name], round(TARGETS[name].share * options.inputs), options.seed)
        print(f"{name}: {outcomes[name].seconds:.0f} s, {len(outcomes[name].findings)} findings", file=sys.stderr)
    print(f"seed {options.seed}\n\n{_table(outcomes)}")
    for name, outcome in outcomes.items():
        for found in outcome.findings[:20]:
            again = f"python -m tests.fuzz '{name}' --seed {options.seed} --number {found.number}"
            print(f"{name}: {found.error}\n    {again}", file=sys.stderr)
    return int(any(outcome.findings for outcome in outcomes.values()))


def _one(name: str, seed: int, number: int) -> int:
    target = TARGETS[name]
    with TemporaryDirectory() as folder:
        data = input_of(target, target.seeds(Path(folder)), seed, number)
        print(data[:2000])
        print("accepted" if is_accepted(target, data, Path(folder)) else "refused")
    return 0


def _table(outcomes: dict[str, Outcome]) -> str:
    rows = [
        (
            name,
            f"{found.accepted:,}",
            f"{found.refused:,}",
            str(len(found.findings)),
            f"{found.grown_bytes / 2**20:.1f}",
            f"{found.seconds:.0f}",
        )
        for name, found in outcomes.items()
    ]
    return text_table(("target", "accepted", "refused", "findings", "growth, MiB", "seconds"), rows)


if __name__ == "__main__":
    sys.exit(main())
