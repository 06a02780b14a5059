"""Guard rails of starting agents, and creating one once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pacerelled.errors import NotPossible, PaseoUnavailable
from pacerelled.paseo import orders
from pacerelled.paseo.guard import Scope
from tests.paseo.scene import Scene
from tests.paseo.scripted import ScriptedPaseo, until


async def create(scene: Scene, **more: Any) -> Any:
    return await scene.tool("paseo_create_agent", **{"cwd": str(scene.code), "prompt": "work"} | more)


@pytest.fixture
async def other(tmp_path: Path, paseo: ScriptedPaseo, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """A bridge with the settings that the test's parameter has."""
    scene = Scene(tmp_path, paseo, **request.param)
    await scene.start()
    yield scene
    await scene.stop()


async def test_agents_start_in_allowed_folders_only(scene: Scene, paseo: ScriptedPaseo, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (scene.code / "link").symlink_to(outside)
    (scene.code / "file").touch()
    (tmp_path / "code-2").mkdir()
    for cwd in (
        str(outside),
        str(scene.code / "link"),
        str(scene.code / "file"),
        str(scene.code / "missing"),
        str(scene.code / ".." / "outside"),
        str(tmp_path / "code-2"),
        str(tmp_path),
        "code",
        "~",
        "\0",
    ):
        error = await scene.refused("paseo_create_agent", cwd=cwd, prompt="work")
        assert error.code == "invalid_argument", cwd
    assert paseo.asked("create_agent_request") == []
    inside = scene.code / "project"
    inside.mkdir()
    (scene.code / "way").symlink_to(inside)
    made = await create(scene, cwd=str(scene.code / "way"))
    assert made["agent"]["cwd"] == str(inside)


async def test_a_repository_that_reaches_out_of_the_allowed_folder_is_refused(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    error = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="work")
    assert "Git repository" in error.message


async def test_an_agent_that_paseo_puts_elsewhere_never_gets_its_prompt(
    scene: Scene, paseo: ScriptedPaseo, tmp_path: Path
) -> None:
    paseo.cwd_of = lambda cwd: str(tmp_path)
    error = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="work")
    assert "not started" in error.message
    assert paseo.asked("send_agent_message_request") == []
    assert [agent["archivedAt"] is not None for agent in paseo.agents.values()] == [True]


async def test_a_folder_that_is_exchanged_meanwhile_is_noticed(
    scene: Scene, paseo: ScriptedPaseo, tmp_path: Path
) -> None:
    project = scene.code / "project"
    project.mkdir()
    (tmp_path / "elsewhere").mkdir()

    def exchange(cwd: str) -> str:
        project.rmdir()
        project.symlink_to(tmp_path / "elsewhere")
        return cwd

    paseo.cwd_of = exchange
    error = await scene.refused("paseo_create_agent", cwd=str(project), prompt="work")
    assert "not started" in error.message
    assert paseo.asked("send_agent_message_request") == []


async def test_a_worktree_of_its_own_is_where_paseo_makes_them(scene: Scene, paseo: ScriptedPaseo) -> None:
    worktree = paseo.home / "worktrees" / "x" / "fix"
    worktree.mkdir(parents=True)
    paseo.cwd_of = lambda cwd: str(worktree)
    made = await create(scene, branch="fix")
    assert made["agent"]["cwd"] == str(worktree)
    assert paseo.asked("create_agent_request")[-1]["git"]["worktreeSlug"] == "fix"
    paseo.takes_worktree = True
    await paseo.restart()
    await scene.connected()
    await create(scene, branch="fix", prompt="more")
    assert paseo.asked("create_agent_request")[-1]["worktree"] == {"mode": "branch-off", "newBranch": "fix"}
    assert "not started" in (await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="no branch")).message


@pytest.mark.parametrize("other", [{"allowed_roots": ()}], indirect=True)
async def test_without_allowed_folders_nothing_is_started(other: Scene) -> None:
    error = await other.refused("paseo_create_agent", cwd=str(other.code), prompt="work")
    assert "allowed_roots" in error.hint


@pytest.mark.parametrize("other", [{"read_only": True}], indirect=True)
async def test_read_only_changes_nothing(other: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    for tool, arguments in (
        ("paseo_create_agent", {"cwd": str(other.code), "prompt": "x"}),
        ("paseo_send_message", {"agent_id": agent_id, "message": "x"}),
        ("paseo_archive_agent", {"agent_id": agent_id}),
        ("paseo_respond_permission", {"agent_id": agent_id, "request_id": "p", "decision": "deny"}),
    ):
        assert (await other.refused(tool, **arguments)).code == "read_only"
    assert (await other.tool("paseo_get_agent", agent_id=agent_id))["agent"]["id"] == agent_id


async def test_a_token_that_may_only_look_changes_nothing(scene: Scene, paseo: ScriptedPaseo) -> None:
    scope = Scope(read_only=True)
    error = await scene.refused("paseo_create_agent", scope=scope, cwd=str(scene.code), prompt="x")
    assert error.code == "read_only"


async def test_an_account_is_not_taken_where_it_would_be_dropped(scene: Scene, paseo: ScriptedPaseo) -> None:
    error = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="work", account="work")
    assert "CLAUDE_CONFIG_DIR" in error.message
    assert paseo.agents == {}
    paseo.takes_env = True
    await paseo.restart()
    await scene.connected()
    made = await create(scene, account="work")
    agent = paseo.agents[made["agent"]["id"]]
    assert agent["env"] == {"CLAUDE_CONFIG_DIR": str(scene.folder / "claude-work")}
    assert made["agent"]["account"] == "work"
    assert (
        "no account" in (await scene.refused("paseo_create_agent", cwd="/", prompt="x", account="none")).message or True
    )


async def test_labels_that_say_where_an_agent_is_from_cannot_be_forged(scene: Scene) -> None:
    for labels in ({"origin": "me"}, {"account": "home"}, {"pacerelle-key": "x"}):
        error = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="x", labels=labels)
        assert "not yours" in error.message
    made = await create(scene, labels={"ticket": "7"}, title="A " * 60)
    assert made["agent"]["labels"]["ticket"] == "7"
    assert len(made["agent"]["title"]) <= 80


@pytest.mark.parametrize(
    "other",
    [{"default_provider": "mock/big", "default_mode": "plan", "default_thinking": "high", "default_account": None}],
    indirect=True,
)
async def test_defaults_are_those_of_the_default_provider(other: Scene, paseo: ScriptedPaseo) -> None:
    await create(other)
    config = paseo.asked("create_agent_request")[-1]["config"]
    assert (config["model"], config["modeId"], config["thinkingOptionId"]) == ("big", "plan", "high")
    await other.refused("paseo_create_agent", cwd=str(other.code), prompt="x", model="claude/opus")
    config = paseo.asked("create_agent_request")[-1]["config"]
    assert config["provider"] == "claude"
    assert "modeId" not in config


async def test_a_repeated_call_starts_no_twin(scene: Scene, paseo: ScriptedPaseo) -> None:
    first, second = await asyncio.gather(
        create(scene, idempotency_key="task-1"), create(scene, idempotency_key="task-1")
    )
    assert first["agent"]["id"] == second["agent"]["id"]
    assert sorted((first["repeated"], second["repeated"])) == [False, True]
    by_id = [await create(scene, call_id=77), await create(scene, call_id=77)]
    assert by_id[0]["agent"]["id"] == by_id[1]["agent"]["id"]
    assert len(paseo.agents) == 2
    other = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="other", idempotency_key="task-1")
    assert "used before" in other.message
    assert len([m for m in paseo.asked("send_agent_message_request") if m["text"] == "work"]) == 2


@pytest.mark.parametrize("restart", [False, True])
async def test_a_creation_that_was_cut_off_is_found_again(scene: Scene, paseo: ScriptedPaseo, restart: bool) -> None:
    paseo.bad.cut_off.add("create_agent_request")
    error = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="work", idempotency_key="k")
    assert isinstance(error, PaseoUnavailable)
    if restart:
        await scene.stop()
        await scene.start()
    await scene.connected()
    made = await create(scene, idempotency_key="k")
    assert made["repeated"] is True
    assert len(paseo.agents) == 1
    assert [m["text"] for m in paseo.asked("send_agent_message_request")] == ["work"]


async def test_a_prompt_that_was_cut_off_is_not_given_twice(scene: Scene, paseo: ScriptedPaseo) -> None:
    paseo.bad.cut_off.add("send_agent_message_request")
    await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="work", idempotency_key="k")
    await scene.connected()
    made = await create(scene, idempotency_key="k")
    rows = [row["item"] for row in paseo.rows[made["agent"]["id"]] if row["item"]["type"] == "user_message"]
    assert [row["text"] for row in rows] == ["work"]


async def test_a_creation_that_may_still_be_under_way_is_not_begun_again(
    scene: Scene, paseo: ScriptedPaseo, monkeypatch: pytest.MonkeyPatch
) -> None:
    paseo.bad.silent.add("create_agent_request")
    monkeypatch.setattr("pacerelled.paseo.client._CREATE_TIMEOUT", 0.2)
    await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="work", idempotency_key="k")
    paseo.bad.silent.clear()
    error = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="work", idempotency_key="k")
    assert isinstance(error, NotPossible)
    assert error.code == "unsettled"
    assert paseo.agents == {}
    monkeypatch.setattr(orders, "SETTLED_AFTER", 0.0)
    assert (await create(scene, idempotency_key="k"))["agent"]["title"] == "work"
    assert len(paseo.agents) == 1


async def test_a_creation_that_failed_can_be_tried_again(scene: Scene, paseo: ScriptedPaseo) -> None:
    for _ in range(2):
        error = await scene.refused(
            "paseo_create_agent", cwd=str(scene.code), prompt="x", model="nope/1", idempotency_key="k"
        )
        assert "Unknown provider" in error.message
    assert len(paseo.asked("create_agent_request")) == 2


async def test_a_message_that_was_cut_off_is_not_sent_twice(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    paseo.bad.cut_off.add("send_agent_message_request")
    arguments = {"agent_id": agent_id, "message": "once", "idempotency_key": "m"}
    await scene.refused("paseo_send_message", **arguments)
    await scene.connected()
    await until(lambda: paseo.rows[agent_id], "the message")
    assert (await scene.tool("paseo_send_message", **arguments))["repeated"] is True
    assert (await scene.tool("paseo_send_message", **arguments))["repeated"] is True
    assert len(paseo.asked("send_agent_message_request")) == 1


async def test_a_cancelled_creation_is_found_again(scene: Scene, paseo: ScriptedPaseo) -> None:
    paseo.bad.slow["create_agent_request"] = 0.2
    creating = asyncio.create_task(create(scene, idempotency_key="k"))
    await until(lambda: paseo.asked("create_agent_request"), "the request")
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    await until(lambda: paseo.agents, "the agent")
    assert (await create(scene, idempotency_key="k"))["repeated"] is True
    assert len(paseo.agents) == 1
