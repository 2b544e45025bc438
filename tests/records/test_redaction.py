"""What looks like a secret is hidden, and nothing else."""

from __future__ import annotations

import pytest

from runner.records.redaction import redacted_arguments, redacted_text


def test_values_of_secret_keys_and_users_in_addresses_are_hidden() -> None:
    given = ["runner", "+store.token=abc", "--password", "xyz", "--api-key=k", "tracking.uri=http://me:pw@host/x"]
    shown = redacted_arguments(given)
    assert shown == [
        "runner",
        "+store.token=[redacted]",
        "--password",
        "[redacted]",
        "--api-key=[redacted]",
        "tracking.uri=http://[redacted]@host/x",
    ]


def test_other_arguments_stay_as_they_are() -> None:
    given = ["runner", "model.tokens=12", "--token-file", "t.txt", "seed=1,2", "optimizer.lr=0.1", "secretary=x"]
    assert redacted_arguments(given) == given


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('+API_TOKEN = "abc"', "+API_TOKEN = [redacted]"),
        ("+  password: hunter22-abc", "+  password: [redacted]"),
        ("+{'secret': 'x'}", "+{'secret': [redacted]}"),
        ("+url = https://me:pw@host", "+url = https://[redacted]@host"),
        ("+token = next(tokens)", "+token = next(tokens)"),
        ("+def f(token: str) -> None:", "+def f(token: str) -> None:"),
        ('+tokens = "abc"', '+tokens = "abc"'),
    ],
)
def test_literals_of_secret_names_are_hidden_in_text(line: str, shown: str) -> None:
    assert redacted_text(f"-old\n{line}\n new\n") == f"-old\n{shown}\n new\n"
