"""The table [paseo] of config.toml, and that the bridge costs nothing without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pacerelled.config import Settings, load_settings
from pacerelled.errors import ConfigError


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load_settings(file, {}, {})


def test_a_whole_table_is_read(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        log_level = "info"
        [paseo]
        daemon_url = "ws://127.0.0.1:7000/ws"
        password = "sesame"
        allowed_roots = ["~/code"]
        default_provider = "claude/opus"
        default_account = "work"
        preview_chars = 200
        [paseo.accounts.work]
        config_dir = "~/.claude-work"
        note = "The office's"
        """,
    ).paseo
    assert settings is not None
    assert settings.enabled
    assert settings.allowed_roots == (Path.home() / "code",)
    assert settings.accounts[0].config_dir == Path.home() / ".claude-work"
    assert (settings.origin_label, settings.account_env_var) == ("pacerelle", "CLAUDE_CONFIG_DIR")
    assert "sesame" not in repr(settings)


def test_it_is_off_without_the_table_or_when_that_says_so(tmp_path: Path) -> None:
    assert load(tmp_path, "").paseo is None
    settings = load(tmp_path, "[paseo]\nenabled = false").paseo
    assert settings is not None
    assert not settings.enabled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("paseo = true", "must be a table"),
        ('[paseo]\nallowedRoots = ["/x"]', "Did you mean `allowed_roots`"),
        ('[paseo]\nallowed_roots = "/x"', "list of folders"),
        ('[paseo]\nallowed_roots = ["x"]', "whole path"),
        ('[paseo]\ndaemon_url = "http://x"', "paseo.daemon_url"),
        ('[paseo]\ndefault_account = "none"', "not among its accounts"),
        ('[paseo.accounts.work]\nnote = "x"', "config_dir"),
        ('[paseo.accounts."a b"]\nconfig_dir = "/x"', "short name"),
        ('[paseo]\naccount_env_var = "A=B"', "environment variable"),
        ("[paseo]\npreview_chars = -1", "whole number"),
        ("[paseo]\nread_only = 1", "true or false"),
        ("[paseo]\npassword = 5", "must be text"),
        ("[paseo]\nwhatever = 5", "Settings are"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert str(tmp_path) in caught.value.message or "paseo" in caught.value.message


def test_without_it_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, pacerelled.app as app; app._import_servers();"
        "print([m for m in sys.modules if m.startswith(('pacerelled.paseo', 'pacerelled.mcp.paseo'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
