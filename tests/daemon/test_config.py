"""Settings: which layer wins, and errors that name the key and where it was set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pacerelled.config import ENVIRONMENT, Settings, checked_url, load_settings
from pacerelled.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def refused(file: Path, text: str | None, env: dict[str, str] | None = None, **flags: Any) -> ConfigError:
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, env or {}, flags)
    assert caught.value.hint
    return caught.value


def test_defaults(file: Path) -> None:
    assert load_settings(file, {}, {}) == Settings()


def test_each_layer_overrides_the_one_before(file: Path) -> None:
    file.write_text('base_url = "http://file"\nlog_level = "error"\nclaim_lease = 10\nkeyring = false\n')
    env = {"PACERELLE_BASE_URL": "http://environment/", "PACERELLED_CLAIM_LEASE": "20", "PACERELLED_LOG_LEVEL": ""}
    found = load_settings(file, env, {"base_url": "http://flag", "log_level": None, "ws_url": None})
    assert found.base_url == "http://flag"
    assert found.claim_lease == 20.0
    assert found.log_level == "error"  # an empty variable and a flag not given say nothing
    assert found.keyring is False
    assert load_settings(file, env, {}).base_url == "http://environment"


def test_every_setting_has_a_variable() -> None:
    assert set(ENVIRONMENT.values()) == set(Settings.__slots__) - {"paseo"}  # a table


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("PACERELLED_KEYRING", "off", False),
        ("PACERELLED_KEYRING", "Yes", True),
        ("PACERELLED_RETRY_UNCERTAIN", "1", True),
        ("PACERELLED_LOG_LEVEL", "DEBUG", "debug"),
        ("PACERELLED_PING_INTERVAL", "0.5", 0.5),
        ("PACERELLE_WS_URL", "wss://relay.example.org/x/", "wss://relay.example.org/x"),
    ],
)
def test_values_of_the_environment(file: Path, variable: str, value: str, wanted: Any) -> None:
    assert getattr(load_settings(file, {variable: value}, {}), ENVIRONMENT[variable]) == wanted


def test_an_unknown_key_suggests_the_near_one(file: Path) -> None:
    error = refused(file, 'base_ulr = "http://x"')
    assert "base_ulr" in error.message
    assert str(file) in error.message
    assert "base_url" in error.hint
    assert "claim_lease" in refused(file, "zzzzz = 1").hint


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("base_url = 3", "base_url"),
        ('base_url = "relay.example.org"', "base_url"),
        ('base_url = "ftp://relay"', "base_url"),
        ('base_url = "http://"', "base_url"),
        ('base_url = "http://me:secret@relay"', "base_url"),
        ('base_url = "http://relay?x=1"', "base_url"),
        ('base_url = "http://re lay"', "base_url"),
        ('base_url = "http://relay:99999"', "base_url"),
        ('base_url = "http://[::1"', "base_url"),
        ('ws_url = "http://relay"', "ws_url"),
        ('log_level = "loud"', "log_level"),
        ("log_level = true", "log_level"),
        ("keyring = 1", "keyring"),
        ('keyring = "maybe"', "keyring"),
        ("claim_lease = true", "claim_lease"),
        ("claim_lease = 0.5", "claim_lease"),
        ("claim_grace = -1", "claim_grace"),
        ("ping_interval = nan", "ping_interval"),
        ("ping_timeout = inf", "ping_timeout"),
        ("reconnect_max = [1]", "reconnect_max"),
        ('reconnect_max = "soon"', "reconnect_max"),
        ("[claim_lease]\nx = 1", "claim_lease"),
    ],
)
def test_a_wrong_value_names_its_key_and_the_file(file: Path, text: str, key: str) -> None:
    error = refused(file, text)
    assert f"`{key}`" in error.message
    assert str(file) in error.message
    assert "secret" not in error.message


def test_a_wrong_value_elsewhere_names_the_place(file: Path) -> None:
    assert "environment" in refused(file, None, {"PACERELLED_CLAIM_LEASE": "long"}).message
    assert "command line" in refused(file, None, base_url="nowhere").message


@pytest.mark.parametrize("data", [b"base_url =", b"\xff\xfe", b"a = 1\na = 2", b"= x"])
def test_a_file_that_is_no_toml(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert str(file) in refused(file, None).message


def test_a_file_that_cannot_be_read(file: Path) -> None:
    file.mkdir()
    assert str(file) in refused(file, None).message


def test_an_address_loses_its_last_slash() -> None:
    assert checked_url("https://relay.example.org/base/", "x", ("https",)) == "https://relay.example.org/base"
