import math
import re

from hypothesis import given
from hypothesis import strategies as st

from runner.tracking.mlflow_rules import KEY_LENGTH, flat_params, safe_key, safe_metric, safe_tags

# What MLflow 3 accepts as a key: mlflow.utils.validation.validate_param_and_metric_name.
_ACCEPTED = re.compile(r"[/\w.\- :]*")


def test_a_configuration_becomes_flat_text() -> None:
    config = {
        "seed": 1,
        "train": {"epochs": None, "lr": 1e-3, "sizes": [1, 2]},
        "model": {"name": "mlp"},
        "empty": {},
    }
    assert flat_params(config) == {
        "seed": "1",
        "train.epochs": "null",
        "train.lr": "0.001",
        "train.sizes": "[1, 2]",
        "model.name": "mlp",
        "empty": "{}",
    }


@given(st.text(min_size=1, max_size=400))
def test_every_key_is_made_acceptable(key: str) -> None:
    safe = safe_key(key)
    assert _ACCEPTED.fullmatch(safe)
    assert len(safe) <= KEY_LENGTH


def test_the_characters_mlflow_refuses_are_escaped_with_their_code() -> None:
    assert safe_key("+a[0],b@c") == "_x2b_a_x5b_0_x5d__x2c_b_x40_c"


def test_long_keys_stay_distinct() -> None:
    assert safe_key("k" * 300 + "a") != safe_key("k" * 300 + "b")


def test_values_are_cut_at_the_limits_of_mlflow() -> None:
    assert len(flat_params({"text": "x" * 7000})["text"]) == 6000
    assert len(safe_tags({"text": "x" * 9000})["text"]) == 8000


def test_secrets_do_not_leave_the_machine() -> None:
    config = {"store": {"api_key": "hunter2"}, "model": {"tokens": 512}}
    assert flat_params(config) == {"store.api_key": "[redacted]", "model.tokens": "512"}
    assert safe_tags({"my.token": "hunter2"}) == {"my.token": "[redacted]"}


def test_an_address_loses_its_user_and_password() -> None:
    params = flat_params({"tracking": {"uri": "postgresql://me:hunter2@host/db"}})
    assert params == {"tracking.uri": "postgresql://[redacted]@host/db"}


def test_infinity_becomes_nan() -> None:
    assert math.isnan(safe_metric(math.inf))
    assert math.isnan(safe_metric(-math.inf))
    assert math.isnan(safe_metric(math.nan))
    assert safe_metric(1.5) == 1.5
