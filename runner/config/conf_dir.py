"""Where the YAML files of the configuration are."""

from __future__ import annotations

from pathlib import Path

from runner.errors import ResourceError


def conf_dir() -> Path:
    """Return ``conf`` inside the installed package, or else beside it in a checkout.

    Raises ResourceError when there is neither, which means that the installation is broken.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "conf", package.parent / "conf")
    for candidate in candidates:
        if (candidate / "config.yaml").is_file():
            return candidate
    places = " and ".join(str(candidate) for candidate in candidates)
    raise ResourceError(f"no configuration files at {places}: reinstall runner-dataflow")
