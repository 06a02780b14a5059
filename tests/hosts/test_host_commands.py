"""`pacerelle host install`, `list` and `--uninstall` as a process, on real files."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pacerelle_shim
from pacerelle_cli.hosts import formats
from pacerelle_cli.hosts.catalogue import HOSTS, Host
from tests.cli.world import World
from tests.hosts.host_world import HostHome

SHIM = str(Path(pacerelle_shim.__file__).with_name("__main__.py"))
FAST = ["-I", "-S", SHIM]

FILES = {
    "json": '{\n  "numStartups": 3,\n  "mcpServers": {\n    "other": {"command": "x"}\n  }\n}\n',
    "jsonc": '// mine\n{\n  "%s": {\n    "other": {"command": "x"}, // why\n  },\n}\n',
    "toml": '# mine\nmodel = "m"   # which\n[mcp_servers.other]\ncommand = "x"\n\n# about\n[tui]\n',
    "yaml": "# mine\nextensions:\n    # why\n    other: {type: builtin}\nGOOSE_MODE:   auto\n",
}


def text_for(host: Host) -> str:
    return FILES[host.format].replace("%s", host.servers)


def entry_of(host: Host, file: Path) -> Any:
    return formats.find(formats.read(host.format, file.read_text()), host.where)


def check(host: Host, found: Any, **env: str) -> None:
    assert found[host.command] == sys.executable
    assert found[host.args] == FAST
    assert found.get(host.env, {}) == env
    assert {name: found[name] for name in (*host.first, *host.more)} == {**host.first, **host.more}


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_the_entry_comes_and_goes(home: HostHome, host: Host) -> None:
    file, before = home.file(host), text_for(host)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before)
    file.chmod(0o640)

    result = home.host("install", host.key, "--agent", "a-1")
    assert result.code == 0, result
    assert str(file) in result.out
    assert host.restart in result.out
    assert "pacerelle agent add a-1" in result.out  # no daemon runs
    check(host, entry_of(host, file), PACERELLE_AGENT_ID="a-1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    backup = file.with_name(file.name + ".pacerelle-backup")
    assert (backup.read_text(), stat.S_IMODE(backup.stat().st_mode)) == (before, 0o640)
    assert {path.name for path in file.parent.iterdir() if path.is_file()} == {file.name, backup.name}

    installed = file.read_bytes()
    again = home.host("install", host.key, "--agent", "a-1")
    assert "has the entry already" in again.out
    assert (file.read_bytes(), backup.read_text()) == (installed, before)
    assert home.states()[host.key] == "current"

    removed = home.host("install", host.key, "--uninstall")
    assert removed.out.startswith("Removed the entry")
    assert file.read_text() == before
    assert backup.read_bytes() == installed
    nothing = home.host("install", host.key, "--uninstall")
    assert (nothing.code, "nothing to remove" in nothing.out) == (0, True)


def test_where_there_is_no_file_one_is_made_for_the_user_alone(home: HostHome) -> None:
    for host in HOSTS.values():
        answer = home.host_json("install", host.key)
        assert answer["changed"] is True
        assert answer["backup"] is None
        assert (answer["before"], answer["installed"]) == ("absent", False)
        file = home.file(host)
        assert answer["file"] == str(file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        check(host, entry_of(host, file))
    assert set(home.states().values()) == {"current"}


def test_print_writes_nothing(home: HostHome) -> None:
    for host in HOSTS.values():
        result = home.host("install", host.key, "--print", "--agent", "a-1")
        check(host, formats.find(formats.read(host.format, result.out), host.where), PACERELLE_AGENT_ID="a-1")
        assert result.err == f"For {home.file(host)}:\n"
    assert list(home.path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("claude-desktop", '{\n  "a": 1,\n}', 3),
        ("cursor", '{\n"a" 1}', 2),
        ("codex", "a = 1\nb = \n", 2),
        ("goose", "a: 1\na: 2\n", 2),
        ("zed", '{\n\n"context_servers": []}', 1),
    ],
)
def test_a_broken_file_is_left_alone(home: HostHome, key: str, text: str, line: int) -> None:
    file = home.file(HOSTS[key])
    file.parent.mkdir(parents=True)
    file.write_text(text)
    for more in ([], ["--uninstall"]):
        result = home.host("install", key, *more)
        if not more or key != "zed":
            assert result.code == 1
            assert result.err.startswith(f"Error: {file}, line {line}: ")
            assert "left as it is" in result.err
    assert file.read_text() == text
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    states = home.states()
    assert states[key] in ("unreadable", "absent")
    assert set(states.values()) - {states[key]} == {"absent"} - {states[key]}


def test_bytes_that_are_no_text_are_left_alone(home: HostHome) -> None:
    file = home.file(HOSTS["cursor"])
    file.parent.mkdir()
    file.write_bytes(b'{\n"a": "\xff"}')
    answer = home.host_json("install", "cursor")
    assert answer["error"]["code"] == "bad_host_file"
    assert "line 2" in answer["error"]["message"]


def test_a_symlink_stays_one(home: HostHome) -> None:
    dotfiles = home.path / "dotfiles"
    dotfiles.mkdir()
    real, link = dotfiles / "codex.toml", home.file(HOSTS["codex"])
    real.write_text(FILES["toml"])
    link.parent.mkdir()
    link.symlink_to("../dotfiles/codex.toml")
    assert home.host("install", "codex").code == 0
    assert os.readlink(link) == "../dotfiles/codex.toml"
    check(HOSTS["codex"], entry_of(HOSTS["codex"], real))
    assert [path.name for path in dotfiles.iterdir()] == ["codex.toml"]


def test_a_byte_order_mark_and_crlf_stay(home: HostHome) -> None:
    file = home.file(HOSTS["vscode"])
    file.parent.mkdir(parents=True)
    before = b'\xef\xbb\xbf{\r\n\t"servers": {\r\n\t\t"a": {}\r\n\t}\r\n}\r\n'
    file.write_bytes(before)
    home.host("install", "vscode")
    after = file.read_bytes()
    assert after.startswith(before[:20])
    assert after.count(b"\n") == after.count(b"\r\n")
    home.host("install", "vscode", "--uninstall")
    assert file.read_bytes() == before


# Entries that are there


def test_the_original_servers_entry_keeps_what_it_knows(home: HostHome) -> None:
    file = home.file(HOSTS["claude-code"])
    env = {"PACERELLE_AGENT_ID": "a-9", "PACERELLE_AGENT_TOKEN": "secret", "PACERELLE_BASE_URL": "http://127.0.0.1:1"}
    args = ["-y", "@pacerelle/mcp-server", "--ws-url", "ws://127.0.0.1:1"]
    entry = {"command": "npx", "args": args, "env": env, "alwaysAllow": ["get_status"]}
    file.write_text(json.dumps({"mcpServers": {"pacerelle": entry}}, indent=4))
    assert home.states()["claude-code"] == "other command"
    refused = home.host("install", "claude-code", "--uninstall")
    assert (refused.code, "not ours to remove" in refused.err) == (1, True)

    result = home.host("install", "claude-code")
    assert "secret" not in result.out + result.err
    found = entry_of(HOSTS["claude-code"], file)
    wanted = {"command": sys.executable, "args": [*FAST, "--ws-url", "ws://127.0.0.1:1"], "type": "stdio"}
    assert found == entry | wanted
    assert home.states()["claude-code"] == "current"


@pytest.mark.parametrize(
    "words",
    [
        ["/old/.venv/bin/pacerelle-mcp", "--agent-id", "a-1", "--base-url=http://127.0.0.1:1"],
        ["/old/.venv/bin/python", "-m", "pacerelle_shim", "--agent-id=a-1", "--base-url=http://127.0.0.1:1"],
        ["/old/.venv/bin/python", *FAST, "--base-url=http://127.0.0.1:1", "--agent-id", "a-1"],
    ],
)
def test_another_installations_entry_is_outdated(home: HostHome, words: list[str]) -> None:
    file = home.file(HOSTS["gemini"])
    file.parent.mkdir()
    entry = {"command": words[0], "args": words[1:], "trust": True}
    file.write_text(json.dumps({"mcpServers": {"pacerelle": entry}}))
    assert home.states()["gemini"] == "outdated"
    answer = home.host_json("install", "gemini", "--agent", "a-2")
    assert answer["before"] == "outdated"
    assert entry_of(HOSTS["gemini"], file) == {
        "command": sys.executable,
        "args": [*FAST, "--base-url=http://127.0.0.1:1"],
        "trust": True,
        "env": {"PACERELLE_AGENT_ID": "a-2"},
    }


def test_an_entry_with_a_url_is_replaced_as_a_whole(home: HostHome) -> None:
    file = home.file(HOSTS["codex"])
    file.parent.mkdir()
    file.write_text('[mcp_servers.pacerelle]\nurl = "http://127.0.0.1:1/mcp" # was\n\n# about\n[tui]\n')
    assert home.states()["codex"] == "other command"
    assert home.host("install", "codex").code == 0
    check(HOSTS["codex"], entry_of(HOSTS["codex"], file))
    assert "# about\n[tui]\n" in file.read_text()


def test_settings_that_wait_for_their_command_stay(home: HostHome) -> None:
    file = home.file(HOSTS["codex"])
    file.parent.mkdir()
    before = '[mcp_servers.pacerelle]\nenabled_tools = ["get_status"] # mine\n'
    file.write_text(before)
    assert home.host("install", "codex", "--agent", "a-1").code == 0
    assert file.read_text().startswith(before)
    check(HOSTS["codex"], entry_of(HOSTS["codex"], file), PACERELLE_AGENT_ID="a-1")


def test_another_store_or_socket_is_written_too(home: HostHome) -> None:
    home.host("install", "cursor", before=("--store-root", "shop", "--socket", "run/mcp.sock"))
    found = entry_of(HOSTS["cursor"], home.file(HOSTS["cursor"]))
    assert found["env"] == {"PACERELLE_STORE_ROOT": str(home.path / "shop")}
    assert found["args"] == [*FAST, "--socket", str(home.path / "run" / "mcp.sock")]


def test_a_channel_is_claude_codes_and_stays(home: HostHome) -> None:
    host = HOSTS["claude-code"]
    assert home.host("install", "codex", "--channel").code == 2
    shown = home.host("install", "claude-code", "--channel")
    assert "claude --dangerously-load-development-channels server:pacerelle" in shown.out
    assert entry_of(host, home.file(host))["args"] == [*FAST, "--channel"]
    assert "was not changed" in home.host("install", "claude-code", "--channel").out
    home.host("install", "claude-code", "--agent", "a-1")
    assert entry_of(host, home.file(host))["args"] == [*FAST, "--channel"]
    assert home.states()["claude-code"] == "current"
    assert "--channel" in home.host("install", "claude-code", "--channel", "--print").out


def test_another_file_of_the_host(home: HostHome) -> None:
    home.host("install", "vscode", "--file", "project/.vscode/mcp.json")
    check(HOSTS["vscode"], entry_of(HOSTS["vscode"], home.path / "project" / ".vscode" / "mcp.json"))
    assert not home.file(HOSTS["vscode"]).exists()


# Where, and whether


def test_files_are_where_their_makers_say() -> None:
    env = {"HOME": "/home/ada"}
    mac = {key: str(host.file(env, "darwin")).removeprefix("/home/ada/") for key, host in HOSTS.items()}
    linux = {key: str(host.file(env, "linux")).removeprefix("/home/ada/") for key, host in HOSTS.items()}
    assert mac["claude-desktop"] == "Library/Application Support/Claude/claude_desktop_config.json"
    assert mac["vscode"] == "Library/Application Support/Code/User/mcp.json"
    assert linux["claude-desktop"] == ".config/Claude/claude_desktop_config.json"
    assert linux["vscode"] == ".config/Code/User/mcp.json"
    same = {
        "claude-code": ".claude.json",
        "codex": ".codex/config.toml",
        "cursor": ".cursor/mcp.json",
        "zed": ".config/zed/settings.json",
        "gemini": ".gemini/settings.json",
        "goose": ".config/goose/config.yaml",
    }
    assert mac == mac | same
    assert linux == linux | same


def test_files_follow_the_hosts_own_variables() -> None:
    env = {"HOME": "/h", "CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/cl", "XDG_CONFIG_HOME": "/x"}
    found = {key: str(host.file(env, "linux")) for key, host in HOSTS.items()}
    assert found["codex"] == "/c/config.toml"
    assert found["claude-code"] == "/cl/.claude.json"
    assert found["zed"] == "/x/zed/settings.json"
    assert str(HOSTS["zed"].file(env | {"XDG_CONFIG_HOME": "relative"}, "linux")) == "/h/.config/zed/settings.json"


def test_a_host_is_seen_by_its_program_or_its_folder(home: HostHome) -> None:
    programs = home.path / "bin"
    programs.mkdir()
    (programs / "codex").write_text("#!/bin/sh\n")
    (programs / "codex").chmod(0o755)
    (home.path / ".gemini").mkdir()
    (home.path / ".gemini" / "oauth.json").touch()
    rows = home.host_json("list", PATH=str(programs))["hosts"]
    seen = {row["host"] for row in rows if row["installed"]}
    assert {"codex", "gemini"} <= seen
    assert not seen & {"goose", "zed"}
    assert "was not found on this machine" not in home.host("install", "gemini").out


def test_list_tells_what_is_wrong_with_a_file(home: HostHome) -> None:
    file = home.file(HOSTS["zed"])
    file.parent.mkdir(parents=True)
    file.write_text("{")
    result = home.host("list")
    assert result.code == 0
    assert f"{file}, line 1: " in result.out


def test_uninstall_goes_alone(home: HostHome) -> None:
    for more in ("--print", "--agent=a", "--channel"):
        assert home.host("install", "zed", "--uninstall", more).code == 2
    assert home.host("install", "nonesuch").code == 2


async def test_only_the_formats_that_are_needed_are_imported(home: HostHome) -> None:
    program = (
        "import sys\n"
        "from pacerelle_cli.root import root\n"
        "root(['host', *sys.argv[1:]], standalone_mode=False)\n"
        "print('imported', *sys.modules, file=sys.stderr)"
    )
    for args in (["list"], ["install", "cursor"]):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, *args,
            env=home.env(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        _, err = await asyncio.wait_for(child.communicate(), 30)
        imported = set(err.decode().split("imported ")[1].split())
        assert not imported & {"tomlkit", "ruamel.yaml", "subprocess", "asyncio", "mcp", "rich"}


# What the daemon still needs


async def test_install_says_what_the_daemon_still_needs(world: World) -> None:
    async def advice(*args: str) -> list[str]:
        result = await world.run("host", "install", "zed", *args, "--json")
        assert result.code == 0, result
        return list(json.loads(result.out)["advice"])

    assert await advice() == ["The daemon does not know any agent yet: pacerelle agent add AGENT_ID"]
    await world.agent("a-1")
    assert await advice() == []
    await world.agent("a-2", token=None)
    assert await advice() == ["The daemon has several agents: say which one this host is for, with --agent AGENT_ID."]
    assert await advice("--agent", "a-1") == []
    assert await advice() == []  # the entry names one now
    assert await advice("--agent", "a-2") == ["The daemon needs the agent's token: pacerelle agent token a-2"]
    assert await advice("--agent", "a-3") == ["The daemon does not know the agent yet: pacerelle agent add a-3"]
