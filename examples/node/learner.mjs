// The actor's end of the wire, written from crossborder.proto alone: joins, keeps one stream open, fetches models.
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

// The file is beside this one if you have copied both; otherwise it is in the clone.
const PROTO = ["./crossborder.proto", "../../protos/crossborder/v1/crossborder.proto"]
  .map((path) => fileURLToPath(new URL(path, import.meta.url)))
  .find((path) => existsSync(path));
const PROTOCOL_VERSION = 3;
const JOIN_MS = 5_000;
const PATIENCE_MS = 120_000;
const HEARTBEAT_MS = 1_000;
const SILENCE_MS = 15_000; // A learner answers every heartbeat: if it is silent for longer, it is gone.
const FINISH_MS = 10_000;
const MAX_MESSAGE_BYTES = 5 << 20; // A model of up to 4 MiB comes in one message.

// By dtype: the bytes of one value, and a function that writes one value into a DataView.
const DTYPES = {
  "|b1": [1, (view, at, value) => view.setUint8(at, value ? 1 : 0)],
  "|u1": [1, (view, at, value) => view.setUint8(at, value)],
  "|i1": [1, (view, at, value) => view.setInt8(at, value)],
  "<u2": [2, (view, at, value) => view.setUint16(at, value, true)],
  "<i2": [2, (view, at, value) => view.setInt16(at, value, true)],
  "<u4": [4, (view, at, value) => view.setUint32(at, value, true)],
  "<i4": [4, (view, at, value) => view.setInt32(at, value, true)],
  "<u8": [8, (view, at, value) => view.setBigUint64(at, BigInt(value), true)],
  "<i8": [8, (view, at, value) => view.setBigInt64(at, BigInt(value), true)],
  "<f4": [4, (view, at, value) => view.setFloat32(at, value, true)],
  "<f8": [8, (view, at, value) => view.setFloat64(at, value, true)],
};

// PushItemsRequest.payload: all values of a column, one column after another, little-endian, without padding.
function pack({ columns }, rows) {
  return Buffer.concat(columns.map((column) => packColumn(column, rows)));
}

function packColumn({ name, dtype, shape }, rows) {
  if (!DTYPES[dtype]) throw new Error(`column ${name}: ${dtype} cannot be packed here`);
  const [bytes, write] = DTYPES[dtype];
  const values = rows.flatMap((row) => row[name]);
  const expected = rows.length * shape.reduce((product, n) => product * n, 1);
  if (values.length !== expected || values.includes(undefined))
    throw new Error(`column ${name}: expected ${expected} values, found ${values.filter((v) => v !== undefined).length}`);
  const buffer = Buffer.alloc(expected * bytes);
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.length);
  values.forEach((value, i) => write(view, i * bytes, value));
  return buffer;
}

// GetModelResponse.checksum: all 64-bit words of a file, the last one padded with zeros, added up.
function checksum(file) {
  const padded = Buffer.concat([file, Buffer.alloc(7)]);
  let sum = 0n;
  for (let at = 0; at + 8 <= padded.length; at += 8) sum += padded.readBigUInt64LE(at);
  return BigInt.asUintN(64, sum);
}

// Ordered by incarnation first, opt_steps second; 64-bit numbers are strings here, and an absent version is no model.
export function isNewer(one, other) {
  const [a, b] = [one, other].map((version) => [BigInt(version?.incarnation ?? 0), BigInt(version?.opt_steps ?? 0)]);
  return a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]);
}

const PERMANENT = [
  grpc.status.INVALID_ARGUMENT,
  grpc.status.FAILED_PRECONDITION,
  grpc.status.PERMISSION_DENIED,
  grpc.status.UNIMPLEMENTED,
  grpc.status.RESOURCE_EXHAUSTED,
  grpc.status.UNAUTHENTICATED,
];

// What to do after an error: "again": try again; "stopping": the learner ends; null: the error is permanent.
function outlook(error) {
  const [name] = error.metadata?.get("crossborder-error") ?? [];
  if (name === "stopping") return "stopping";
  if (name) return ["not_joined", "too_many_actors", "over_limit", "token_replaced"].includes(name) ? "again" : null;
  return error.code === undefined || PERMANENT.includes(error.code) ? null : "again";
}

// TLS with the authority in the file `ca`, and on every call the token in the file `tokenFile`: `NAME TOKEN` or a token.
// With mutual TLS the actor's own certificate and key, in the files `certificate` and `key`.
function credentials({ ca, tokenFile, certificate, key }) {
  if (!ca) return grpc.credentials.createInsecure();
  const own = certificate ? [readFileSync(key), readFileSync(certificate)] : [];
  const encrypted = grpc.credentials.createSsl(readFileSync(ca), ...own);
  if (!tokenFile) return encrypted;
  const addToken = (_, done) => {
    const metadata = new grpc.Metadata();
    metadata.set("authorization", `Bearer ${readFileSync(tokenFile, "utf8").trim().split("\n")[0].split(/\s+/).at(-1)}`);
    done(null, metadata);
  };
  return grpc.credentials.combineChannelCredentials(encrypted, grpc.credentials.createFromMetadataGenerator(addToken));
}

const newIncarnation = () => String((randomBytes(8).readBigUInt64LE() >> 1n) + 1n);

// The reason why a Join has failed that will be tried again, and a hint.
function explain({ message }, { ca }) {
  const hint = ca ? "" : " (a learner with TLS needs the file of its authority, ca.pem)";
  return `no answer from the learner yet: ${message}${hint}`;
}

export class Learner {
  // `trust` has the paths `ca`, `tokenFile`, `certificate` and `key`. Without `ca` nothing is encrypted; a learner
  // allows this on its own host only. `former` is the incarnation whose id the new incarnation takes over.
  constructor(address, trust = {}, former = "0") {
    const options = { keepCase: true, longs: String, defaults: true };
    const { LearnerService } = grpc.loadPackageDefinition(protoLoader.loadSync(PROTO, options)).crossborder.v1;
    const limits = { "grpc.max_receive_message_length": MAX_MESSAGE_BYTES };
    this.client = new LearnerService(address, credentials(trust), limits);
    this.trust = trust;
    this.former = former;
    this.startsOver = false; // Whether to go on with a new Learner: for another run, or for other settings.
    this.holdsId = "0"; // The incarnation that holds an id of the other run; it becomes the `former` of the new Learner.
    this.incarnation = newIncarnation();
    this.seq = this.acked = 0;
    this.unacked = []; // Batches kept until they are acknowledged, oldest first.
    this.stopping = false;
    this.figures = { env_steps: 0, seconds: 0, reconnects: 0 }; // Each report has these figures.
  }

  async join(former = "0") {
    const request = { protocol_version: PROTOCOL_VERSION, incarnation: this.incarnation, former_incarnation: former };
    const end = performance.now() + PATIENCE_MS; // No wall clock, which may jump.
    for (let ceiling = 100; ; ceiling = Math.min(2 * ceiling, 5_000)) {
      try {
        return await new Promise((resolve, reject) => {
          const done = (error, response) => (error ? reject(error) : resolve(response));
          const who = { host: hostname(), pid: process.pid };
          this.client.Join({ ...request, ...who }, { deadline: Date.now() + JOIN_MS }, done);
        });
      } catch (error) {
        if (outlook(error) !== "again" || performance.now() > end) throw error;
        console.error(explain(error, this.trust));
        await sleep((0.5 + 0.5 * Math.random()) * ceiling);
      }
    }
  }

  // Join, then act with `act` while a stream is open; return once everything is handed over.
  async serve(act) {
    this.joined = await this.join(this.former);
    this.newest = this.joined.newest;
    const conversation = this.stayConnected();
    const acting = act().then(() => this.finish());
    await Promise.race([acting, conversation]);
    await Promise.race([conversation, sleep(FINISH_MS, null, { ref: false })]);
    this.client.close();
  }

  // Keep one stream open: when it breaks, join again with the same incarnation, and resend batches that are not stored.
  async stayConnected() {
    for (;;) {
      try {
        await this.converse();
        if (this.left || this.told) return;
        console.error("the stream ended");
      } catch (error) {
        if (outlook(error) === "stopping") return this.stop();
        if (outlook(error) !== "again") throw error;
        console.error(`the stream broke: ${error.message}`);
      }
      await sleep(Math.random() * 500);
      await this.joinAgain();
      if (this.left) return;
    }
  }

  async joinAgain() {
    let again = await this.join();
    if (again.run_id !== this.joined.run_id) {
      console.error(`another run answers: ${again.run_id}; rows of the former run are dropped`);
      this.unacked = [];
      this.holdsId = this.incarnation;
      this.startsOver = this.left = true;
      return this.stop();
    }
    if (again.config_json !== this.joined.config_json || again.epsilon !== this.joined.epsilon) {
      console.error("the learner has changed the settings of this actor, which hands over its rows and starts over");
      this.startsOver = true;
      this.stop();
    }
    if (Number(again.last_seq) < this.acked) {
      // The learner has lost batches that it had acknowledged: a new incarnation takes the place of this one.
      const former = this.incarnation;
      this.incarnation = newIncarnation();
      this.unacked = this.unacked.map((batch, i) => ({ ...batch, incarnation: this.incarnation, seq: i + 1 }));
      this.seq = this.unacked.length;
      this.acked = 0;
      again = await this.join(former);
    }
    this.figures.reconnects += 1;
    console.error(`joined again as actor ${again.actor_id}`);
    this.acknowledge(again.last_seq, again.newest);
  }

  async converse() {
    this.stream = this.client.PushItems();
    this.heard = performance.now();
    const heartbeat = setInterval(() => this.beat(), HEARTBEAT_MS);
    try {
      this.stream.write(this.message({}));
      this.unacked.forEach((batch) => this.stream.write(batch));
      this.leaveIfDone();
      for await (const { acked_seq, newest, stop } of this.stream) {
        this.heard = performance.now();
        this.acknowledge(acked_seq, newest);
        if (stop) {
          this.told = true;
          this.stop();
        }
        this.leaveIfDone();
      }
    } finally {
      clearInterval(heartbeat);
      this.stream = null;
    }
  }

  beat() {
    if (performance.now() - this.heard > SILENCE_MS) this.stream.cancel();
    else if (!this.left) this.stream.write(this.message({}));
  }

  acknowledge(seq, newest) {
    this.acked = Math.max(this.acked, Number(seq));
    this.unacked = this.unacked.filter((batch) => batch.seq > this.acked);
    if (isNewer(newest, this.newest)) this.newest = newest;
    this.wake?.();
  }

  // Send rows, in the order of time for each lane, once fewer than `window` batches wait for an acknowledgement.
  async push(rows, behaviour, { returns, lengths }) {
    const { window } = JSON.parse(this.joined.config_json).push;
    while (this.unacked.length >= window && !this.stopping) await new Promise((resolve) => (this.wake = resolve));
    const batch = {
      ...this.message({ episode_returns: returns, episode_lengths: lengths }),
      seq: (this.seq += 1),
      schema_hash: this.joined.schema.hash,
      rows: rows.length,
      payload: pack(this.joined.schema, rows),
      behaviour,
    };
    this.unacked.push(batch);
    this.stream?.write(batch); // If no stream is open, the next stream sends the batch.
  }

  // The newest model's version and file, checked by its checksum. Null: there is no newer model, or no answer now.
  async fetch(have) {
    const chunks = [];
    let last;
    try {
      for await (last of this.client.GetModel({ have }, { deadline: Date.now() + JOIN_MS })) chunks.push(last.data);
    } catch (error) {
      if (outlook(error) === null) throw error;
      await sleep(HEARTBEAT_MS);
      return null;
    }
    if (last.not_modified) return null;
    const file = Buffer.concat(chunks);
    if (String(checksum(file)) !== last.checksum) throw new Error("model: its checksum is wrong");
    return { version: last.version, file };
  }

  stop() {
    this.stopping = true;
    this.wake?.();
  }

  finish() {
    this.finished = true;
    this.leaveIfDone();
  }

  // The last message, once there is nothing left to push.
  leaveIfDone() {
    if (!this.finished || this.unacked.length || !this.stream || this.left) return;
    this.left = true;
    this.stream.write(this.message({ leaving: true }));
    this.stream.end();
  }

  // A request with a report and no rows: a heartbeat.
  message(more) {
    return { incarnation: this.incarnation, seq: 0, report: { ...this.figures, ...more } };
  }
}
