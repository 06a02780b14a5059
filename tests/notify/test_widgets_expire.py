"""What is noted of a widget's time when it is sent, changed and answered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.outbound.conftest import relay, scene
from tests.outbound.scene import WIDGET, Scene, response

__all__ = ["relay", "scene"]


def in_hours(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def expected(scene: Scene) -> dict[str, float]:
    """When each widget expires that waits for an answer, in hours from now."""
    now = datetime.now(UTC).timestamp()
    rows = await scene.core.store.run(lambda tx: tx.all("SELECT message_id, expires FROM widget_expiries"))
    return {row[0]: round((row[1] - now) / 3600) for row in rows}


async def test_a_widget_is_expected_to_be_answered_until_it_is(scene: Scene) -> None:
    await scene.show()
    assert await expected(scene) == {}
    shown = await scene.show({**WIDGET, "id": "w2", "expires_at": in_hours(2)})
    assert await expected(scene) == {shown.message_id: 2}
    await scene.agent.update_widget(scene.session, message_id=shown.message_id, spec={"title": "Now?"})
    assert await expected(scene) == {shown.message_id: 2}
    await scene.agent.update_widget(scene.session, message_id=shown.message_id, expires_at=in_hours(5))
    assert await expected(scene) == {shown.message_id: 5}
    await scene.submitted(shown)
    await scene.deliver(response(scene.ada, "w2"))
    assert await expected(scene) == {}
