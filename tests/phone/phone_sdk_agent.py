"""An agent on the official SDK, as its own process: echoes, and does what the text asks for.

Used by the phone's tests as the other side. It uses the SDK's public interface only.
"""

from __future__ import annotations

import asyncio
import os
import sys

from pacerelle import AgentGatewayClient, AgentMessage

client = AgentGatewayClient(
    token=os.environ["PACERELLE_AGENT_TOKEN"],
    agent_id=os.environ["PACERELLE_AGENT_ID"],
    base_url=os.environ["PACERELLE_BASE_URL"],
    store_root=os.environ["AGENT_STORE"],
    e2ee=True,
)


async def handle(message: AgentMessage, agent: AgentGatewayClient) -> None:
    where = {"conversation_id": message.conversation_id, "to": message.from_id}
    if message.widget_response is not None:
        answer = message.widget_response
        said = "cancelled" if answer.cancelled else repr(answer.value)
        await agent.reply(message, f"widget {answer.ref}: {said}")
    elif message.widget_update is not None:
        await agent.reply(message, f"update {message.widget_update.ref}: {message.widget_update.patch}")
    elif message.text == "ask confirm":
        await agent.send_confirm_widget(**where, widget_id="confirm-1", title="Deploy now?", body="Version 2")
    elif message.text == "ask choice":
        options = [{"id": "pdf", "label": "PDF"}, {"id": "csv", "label": "CSV"}]
        await agent.send_choice_widget(**where, widget_id="choice-1", title="Which format?", options=options)
    elif message.text == "ask form":
        fields = [{"name": "email", "label": "Email", "type": "email", "required": True}]
        await agent.send_form_widget(**where, widget_id="form-1", title="Your address", fields=fields)
    elif message.text == "progress":
        await agent.send_progress_widget(**where, widget_id="progress-1", title="Import", value=10, max=100)
        await agent.send_widget_update(**where, ref="progress-1", spec={"value": 65})
    elif message.text == "send file":
        await agent.send_file(**where, name="report.txt", mime="text/plain", data=b"private report", text="here")
    elif message.text == "colours":
        await agent.reply(message, "red \x1b[31m\x07 end")
    elif message.attachments:
        got = [f"{a.name} {a.mime} {(await agent.download_attachment(a)).decode()}" for a in message.attachments]
        await agent.reply(message, "got " + ", ".join(got))
    else:
        await agent.reply(message, f"Received: {message.text}")


async def main() -> None:
    client.on_message(handle)
    client.publish_prekey_bundle()
    print("ready", client.get_verification_code(), flush=True)
    await client.connect()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
