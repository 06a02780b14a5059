"""A phone that writes numbered messages and prints each number once it is durably queued, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pacerelle_phone.device import Device


async def main(home: str, count: int) -> None:
    async with await Device.open(Path(home)) as phone:
        [agent] = await phone.known_agents()
        begun = len([m for m in await phone.conversation(agent.conversation_id, 10_000) if m.direction == "out"])
        for number in range(begun, count):
            await phone.send(agent.agent_id, f"message {number}")
            print(number, flush=True)
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
