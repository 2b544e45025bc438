"""Keys of secrets are recognised, and shown text contains no secret."""

from typing import Any

import pytest

from runner.config.configuration import to_plain
from runner.system.redaction import is_secret, plain_address, redact, redact_code, redact_overrides, redact_text
from tests.small_runs import small_config

SECRET = "hunter2"


@pytest.mark.parametrize(
    "key",
    [
        *("password", "db.password", "db_passwd", "PASSWORD", "passphrase", "credential", "credentials.user"),
        *("sslpassword", "PGPASSWORD", "dbpasswd"),
        *("token", "hub_token", "hub-token", "authToken", "auth", "secret", "client_secret_value", "plugin.secrets.0"),
        *("api_key", "apikey", "apiKey", "API_KEY", "--api-key", "aws_secret_access_key", "accessKeyId", "private_key"),
    ],
)
def test_a_key_of_a_secret_is_recognised(key: str) -> None:
    assert is_secret(key)
    assert redact({key: SECRET}) == {key: "[redacted]"}


@pytest.mark.parametrize(
    "key", ["tokens", "max_tokens", "token_count", "tokenizer", "keys", "key", "monkey", "author", "", "optimizer.lr"]
)
def test_another_key_is_not_taken_for_a_secret(key: str) -> None:
    assert not is_secret(key)


def test_no_key_of_the_configuration_is_taken_for_a_secret() -> None:
    plain = to_plain(small_config("tracking=mlflow"))
    assert redact(plain) == plain


@pytest.mark.parametrize(
    ("plain", "shown"),
    [
        ({"a": {"token": 12, "b": [1, "x"]}}, {"a": {"token": "[redacted]", "b": [1, "x"]}}),
        ({"credentials": {"user": "me"}}, {"credentials": "[redacted]"}),
        ({"token": None, "lr": 0.1, "on": True}, {"token": None, "lr": 0.1, "on": True}),
        ({"uri": "http://me:hunter2@host/x"}, {"uri": "http://[redacted]@host/x"}),
        ([{"name": "a", "password": SECRET}], [{"name": "a", "password": "[redacted]"}]),
    ],
)
def test_secrets_in_plain_data_are_hidden(plain: Any, shown: Any) -> None:
    assert redact(plain) == shown


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("optimizer.lr=0.1", "optimizer.lr=0.1"),
        ("+plugin.token=hunter2,hunter2b", "+plugin.token=[redacted]"),
        ("plugin.credentials={user: me, pin: hunter2}", "plugin.credentials=[redacted]"),
        ("tracking.uri=postgresql://me:hunter2@host/db", "tracking.uri=postgresql://[redacted]@host/db"),
        ("plugin={token: hunter2}", "plugin={token: [redacted]"),
        ("plugin.token=", "plugin.token="),
        ("-m", "-m"),
    ],
)
def test_secrets_in_overrides_are_hidden(override: str, shown: str) -> None:
    assert redact_overrides([override]) == [shown]


def test_secret_option_values_are_hidden_and_a_plain_address_can_be_opened() -> None:
    assert redact_overrides(["--api-key", SECRET, "--port", "5000"]) == ["--api-key", "[redacted]", "--port", "5000"]
    assert redact_overrides(["--token=x", "seed=1"]) == ["--token=[redacted]", "seed=1"]
    assert plain_address("http://me:hunter2@host:5000/x") == "http://host:5000/x"
    assert plain_address("sqlite:////home/me@work/mlflow.db") == "sqlite:////home/me@work/mlflow.db"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:hunter2@host:5000/api?x=1 failed", "http://[redacted]@host:5000/api?x=1 failed"),
        ("https://hunter2@host/x", "https://[redacted]@host/x"),
        ("postgresql://me:hunter2/with@odd@host/db", "postgresql://[redacted]@host/db"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("ask someone@example.org", "ask someone@example.org"),
        ("https://host/x?token=hunter2&y=2", "https://host/x?token=[redacted]&y=2"),
        ("job 3 (db.password=hunter2, lr=0.1)", "job 3 (db.password=[redacted], lr=0.1)"),
        ("token=hunter2,hunter2b lr=0.1", "token=[redacted] lr=0.1"),
        ("password='hunter2 and more' seed=1", "password=[redacted] seed=1"),
        ("secret = hunter2.", "secret = [redacted]."),
        ("a: b: api_key: hunter2", "a: b: api_key: [redacted]"),
        ('{"token": "hunter2"}', '{"token": [redacted]'),
        ("my.token: Value 'hunter2' of type 'str' is wrong", "my.token: Value [redacted] of type [redacted] is wrong"),
        ("my.token: missing value", "my.token: missing value"),
        ("my.token: 'hunter2' is wrong", "my.token: [redacted] is wrong"),
        ("credentials={user: {name: me}, pin: hunter2} lr=0.1", "credentials=[redacted] lr=0.1"),
        ("credentials=[[me, [[1]]], hunter2] sizes=[1]", "credentials=[redacted] sizes=[1]"),
        ("credentials: {user: me, pin: hunter2}", "credentials: [redacted]"),
        ("Authorization: Bearer hunter2", "Authorization: Bearer [redacted]"),
        ("step 3: test loss 0.25", "step 3: test loss 0.25"),
        ("name=lenet, workers=2", "name=lenet, workers=2"),
    ],
)
def test_secrets_in_text_are_hidden(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown
    assert SECRET not in shown


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
def test_literals_of_secret_names_are_hidden_in_code(line: str, shown: str) -> None:
    assert redact_code(f"-old\n{line}\n new\n") == f"-old\n{shown}\n new\n"


def test_a_long_word_is_read_in_linear_time() -> None:
    word = "x" * 200_000
    assert redact_text(f"{word} token={SECRET}") == f"{word} token=[redacted]"
    assert redact_code(f"{word}\npassword: {SECRET}-abc") == f"{word}\npassword: [redacted]"


def test_a_line_with_many_entries_is_redacted() -> None:
    line = ", ".join(f"device{number}: {number}" for number in range(3000))
    assert redact_text(f"{line}, password: hidden\nnext: 1") == f"{line}, password: [redacted]\nnext: 1"
