"""Limits of MLflow for names and values, and the conversions to fit them."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.system.redaction import redact

KEY_LENGTH = 250
PARAM_LENGTH = 6000
TAG_LENGTH = 8000
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100

RUN_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

_REFUSED = re.compile(r"[^\w.\- :/]", re.ASCII)


def flat_params(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration as MLflow parameters: dotted keys, values as text, lists as JSON, secrets hidden."""
    return {safe_key(key): _text(redact(value, key))[:PARAM_LENGTH] for key, value in _leaves(config, "")}


def safe_key(key: str) -> str:
    """Escape the characters that MLflow refuses, such as ``@ + [ ] ,``, to ``_xHH_`` with their hex code.

    A key longer than 250 characters is cut and ends in a digest of the whole.
    """
    safe = _REFUSED.sub(lambda match: f"_x{ord(match[0]):02x}_", key)
    if len(safe) <= KEY_LENGTH:
        return safe
    return f"{safe[: KEY_LENGTH - 9]}.{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def safe_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags with keys that MLflow accepts, values within its limit, and secrets hidden."""
    return {safe_key(key): str(redact(value, key))[:TAG_LENGTH] for key, value in tags.items()}


def safe_metric(value: float) -> float:
    """Return NaN for infinity: MLflow would store 1.8e308, which flattens the rest of the chart.

    metrics.jsonl keeps the exact value.
    """
    return math.nan if math.isinf(value) else value


def _leaves(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
