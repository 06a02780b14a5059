// A person's device that shares no code with ours: Signal's own library for Node, and the relay's human API.
//
//   node --experimental-websocket human.mjs FOLDER      (FOLDER/node_modules has @signalapp/libsignal-client)
//
// Each line on stdin is a command, `{"do": …}`; each gets one line on stdout: `{"ok": …}` or `{"error": …}`.

import { createCipheriv, createDecipheriv, randomBytes, randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const signal = await import(
  pathToFileURL(`${process.argv[2]}/node_modules/@signalapp/libsignal-client/dist/index.js`)
);
const bytes = (b64) => new Uint8Array(Buffer.from(b64, "base64"));
const b64 = (data) => Buffer.from(data).toString("base64");

class Sessions extends signal.SessionStore {
  records = new Map();
  async saveSession(name, record) { this.records.set(name.toString(), record.serialize()); }
  async getSession(name) {
    const found = this.records.get(name.toString());
    return found ? signal.SessionRecord.deserialize(found) : null;
  }
  async getExistingSessions(names) { return Promise.all(names.map((name) => this.getSession(name))); }
}

class Identities extends signal.IdentityKeyStore {
  own = signal.PrivateKey.generate();
  known = new Map();
  async getIdentityKey() { return this.own; }
  async getLocalRegistrationId() { return 4242; }
  async saveIdentity(name, key) {
    const before = this.known.get(name.toString());
    this.known.set(name.toString(), b64(key.serialize()));
    return before && before !== b64(key.serialize())
      ? signal.IdentityChange.ReplacedExisting : signal.IdentityChange.NewOrUnchanged;
  }
  async isTrustedIdentity(name, key) {
    const before = this.known.get(name.toString());
    return !before || before === b64(key.serialize());
  }
  async getIdentity(name) {
    const found = this.known.get(name.toString());
    return found ? signal.PublicKey.deserialize(bytes(found)) : null;
  }
}

let relay, me, agent, history, sessions, identities, frames, waiting;

async function call(method, path, body) {
  const headers = { "Content-Type": "application/json" };
  if (me) headers.Authorization = `Bearer ${me.device_token}`;
  const answer = await fetch(`${relay}/human/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
  const text = await answer.text();
  return { status: answer.status, answer: text ? JSON.parse(text) : null };
}

async function must(...request) {
  const { status, answer } = await call(...request);
  if (status >= 300) throw new Error(`the relay answered ${status} to ${request[0]} ${request[1]}`);
  return answer;
}

function newKeys() {
  sessions = new Sessions();
  identities = new Identities();
  const identity_key = b64(identities.own.getPublicKey().serialize());
  return must("PUT", "/devices/self/identity", { identity_key });
}

function connect() {
  frames = [];
  const socket = new WebSocket(`${relay.replace("http", "ws")}/human/v1/ws?token=${me.device_token}`);
  socket.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    if (frame.seq) socket.send(JSON.stringify({ type: "ACK", seq: frame.seq }));
    if (frame.type !== "MSG") return;
    frames.push(frame);
    waiting?.();
  };
  return new Promise((resolve, reject) => { socket.onopen = () => resolve(); socket.onerror = reject; });
}

const peer = () => signal.ProtocolAddress.new(`agent:${agent.agent_id}`, 1);
const self = () => signal.ProtocolAddress.new(
  `human:${me.user_id}:${agent.conversation_id}:device:${me.device_id}`, 1);

// What authenticates a history record.
const about = (id, sender, kind) => Buffer.from(
  `pacerelle:conversation-history:v1:${agent.conversation_id}:${id}:${sender}:${kind}:${history.key_id}:${history.epoch}`);

function archive(id, text) {
  const iv = randomBytes(12);
  const cipher = createCipheriv("aes-256-gcm", bytes(history.raw_key_b64), iv).setAAD(about(id, me.user_id, "human"));
  const ciphertext = Buffer.concat([cipher.update(text), cipher.final(), cipher.getAuthTag()]);
  const { key_id, epoch } = history;
  return { key_id, epoch, iv_b64: b64(iv), ciphertext_b64: b64(ciphertext), aad_version: 1 };
}

function unarchive({ id, from, history_record: record }) {
  if (!record) return null;
  const sealed = Buffer.from(record.ciphertext_b64, "base64");
  const cipher = createDecipheriv("aes-256-gcm", bytes(history.raw_key_b64), bytes(record.iv_b64));
  cipher.setAAD(about(id, from, "agent")).setAuthTag(sealed.subarray(-16));
  return Buffer.concat([cipher.update(sealed.subarray(0, -16)), cipher.final()]).toString();
}

const commands = {
  async register({ relay: url, name }) {
    relay = url;
    me = await must("POST", "/accounts", { name });
    await newKeys();
    await connect();
    agent = await must("POST", "/agents", { name: "home" });
    return { user_id: me.user_id, device_id: me.device_id, ...agent };
  },

  // With the agent's bundle; `one_time: false` takes bundles until the relay has no one-time prekey left to hand out.
  async session({ one_time }) {
    let bundle = await must("GET", `/agents/${agent.agent_id}/prekey-bundle`);
    while (!one_time && bundle.one_time_prekey) {
      bundle = await must("GET", `/agents/${agent.agent_id}/prekey-bundle`);
    }
    const once = bundle.one_time_prekey;
    await signal.processPreKeyBundle(
      signal.PreKeyBundle.new(
        bundle.registration_id, bundle.device_id,
        once && once.prekey_id, once && signal.PublicKey.deserialize(bytes(once.public_key)),
        bundle.signed_prekey_id, signal.PublicKey.deserialize(bytes(bundle.signed_prekey_public)),
        bytes(bundle.signed_prekey_signature), signal.PublicKey.deserialize(bytes(bundle.identity_key)),
        bundle.kyber_prekey_id, signal.KEMPublicKey.deserialize(bytes(bundle.kyber_prekey_public)),
        bytes(bundle.kyber_prekey_signature),
      ),
      peer(), self(), sessions, identities,
    );
    return { one_time: Boolean(once) };
  },

  // A message as `post` takes it. `archived: true` hands over a history key and adds the record.
  async seal({ text, archived, reply_to_message_id }) {
    const id = randomUUID();
    let plaintext = text;
    if (archived) {
      history ??= { key_id: randomUUID(), epoch: 1, raw_key_b64: b64(randomBytes(32)) };
      plaintext = JSON.stringify({ type: "pacerelle.delivery", v: 1, body: text, history_key: history });
    }
    const sealed = await signal.signalEncrypt(
      new Uint8Array(Buffer.from(plaintext)), peer(), self(), sessions, identities);
    const first = sealed.type() === signal.CiphertextMessageType.PreKey;
    const payload = Buffer.concat([Buffer.from([first ? 1 : 2]), sealed.serialize()]);
    const history_record = archived ? archive(id, text) : undefined;
    const { conversation_id, agent_id: to } = agent;
    return { id, conversation_id, to, payload_b64: b64(payload), encrypted: true, reply_to_message_id, history_record };
  },

  post: ({ message }) => call("POST", "/messages", message),

  // The next message, still closed.
  async receive({ seconds }) {
    if (!frames.length) {
      await new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error("no message came")), seconds * 1000);
        waiting = () => { clearTimeout(timer); resolve(); };
      });
      waiting = undefined;
    }
    return frames.shift();
  },

  async open({ frame }) {
    const payload = bytes(frame.payload_b64);
    if (payload[0] !== 2) throw new Error(`a message of type ${payload[0]}`);
    const message = signal.SignalMessage.deserialize(payload.subarray(1));
    const text = Buffer.from(await signal.signalDecrypt(message, peer(), self(), sessions, identities)).toString();
    const { id, reply_to_message_id } = frame;
    return { id, text, reply_to_message_id, archived: unarchive(frame) };
  },

  // A new installation under the same device: other keys, no sessions.
  rekey: () => newKeys(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...rest } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ ok: await commands[name](rest) }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
process.exit(0);
