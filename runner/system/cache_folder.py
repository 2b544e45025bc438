"""Where runner keeps what can be had again, for all runs of a user."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache_folder() -> Path:
    """``runner`` in the user's cache folder (XDG base directory specification)."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification wants a relative path there treated as if it were unset.
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "runner"


def gpu_code_folder() -> Path:
    """Of machine code that was compiled for GPUs."""
    return user_cache_folder() / "gpu_code"
