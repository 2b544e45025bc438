"""Facts about a run, for a tracker: what its summary knows before it starts and no configuration says."""

from __future__ import annotations

from runner.records.provenance import provenance_tags
from runner.records.summary import Summary

COMMIT_TAG = "mlflow.source.git.commit"
"""The name under which MLflow's pages show the version of a run's code."""


def summary_tags(summary: Summary) -> dict[str, str]:
    """Name -> text; what is not known has none."""
    known = {
        "runner.run_dir": summary.output_dir,
        COMMIT_TAG: summary.git_commit,
        "runner.emulated": summary.emulated,
        "runner.repeats": summary.repeats,
        "runner.plugins": ", ".join(f"{name} sha256:{digest}" for name, digest in summary.plugins.items()),
        "runner.cpu_model": summary.cpu_model,
        "runner.devices": ", ".join(f"{name} {what}" for name, what in summary.devices.items()),
        "runner.system": summary.platform,
        "runner.versions": ", ".join(f"{name} {version}" for name, version in summary.versions.items()),
        **({} if summary.provenance is None else provenance_tags(summary.provenance)),
    }
    return {tag: text for tag, text in known.items() if text}
