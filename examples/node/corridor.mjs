// An actor in another language, written from crossborder.proto alone: the corridor of examples/own_parts.py in Node.
//
//   learner-server --config examples/own_parts.yaml         in one terminal
//   npm install && node corridor.mjs 127.0.0.1:50051        in another, in this directory
//
// It sends whole batches and waits while the window is full. What it leaves out is in docs/protocol.md.
import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { setImmediate, setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const PROTO = fileURLToPath(new URL("../../protos/crossborder/v1/crossborder.proto", import.meta.url));
const JOIN_MS = 5_000;
const PATIENCE_MS = 60_000;
const HEARTBEAT_MS = 1_000;
const SILENCE_MS = 15_000; // Every heartbeat is answered: a learner silent for so long is gone.
const FINISH_MS = 10_000;

// ---- The toy environment

class Corridor {
  constructor(length) {
    this.length = length;
    this.reset();
  }

  reset() {
    this.at = this.steps = 0;
  }

  step(action) {
    this.at = Math.max(0, this.at + (action ? 1 : -1));
    this.steps += 1;
    const terminated = this.at === this.length;
    return { reward: terminated ? 1 : -0.01, terminated, truncated: this.steps >= 10 * this.length };
  }
}

// ---- What travels

// Writes one value of a dtype into a DataView: its size and how.
const DTYPES = {
  "<f4": [4, (view, at, value) => view.setFloat32(at, value, true)],
  "<f8": [8, (view, at, value) => view.setFloat64(at, value, true)],
  "<i8": [8, (view, at, value) => view.setBigInt64(at, BigInt(value), true)],
  "|b1": [1, (view, at, value) => view.setUint8(at, value ? 1 : 0)],
};

// PushItemsRequest.payload: each column's items, one column after another, little-endian, without padding.
function pack({ columns }, items) {
  return Buffer.concat(columns.map((column) => packColumn(column, items)));
}

function packColumn({ name, dtype, shape, frames }, items) {
  if (frames || !DTYPES[dtype]) throw new Error(`column ${name}: ${frames ? "frames" : dtype} cannot be packed here`);
  const [bytes, write] = DTYPES[dtype];
  const values = items.flatMap((item) => item[name]);
  const expected = items.length * shape.reduce((product, n) => product * n, 1);
  if (values.length !== expected || values.includes(undefined))
    throw new Error(`column ${name}: expected ${expected} values, found ${values.length}`);
  const buffer = Buffer.alloc(expected * bytes);
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.length);
  values.forEach((value, i) => write(view, i * bytes, value));
  return buffer;
}

// A float32 tensor of a safetensors file: a header's length, the header in JSON, the data.
function tensor(file, name) {
  const start = 8 + Number(file.readBigUInt64LE(0));
  const { dtype, data_offsets } = JSON.parse(file.toString("utf8", 8, start))[name];
  if (dtype !== "F32") throw new Error(`tensor ${name}: expected F32, found ${dtype}`);
  const data = file.subarray(start + data_offsets[0], start + data_offsets[1]);
  return Float32Array.from({ length: data.length / 4 }, (_, i) => data.readFloatLE(4 * i));
}

// GetModelResponse.checksum: all 64-bit words of a file, the last one padded with zeros.
function checksum(file) {
  const padded = Buffer.concat([file, Buffer.alloc(7)]);
  let sum = 0n;
  for (let at = 0; at + 8 <= padded.length; at += 8) sum += padded.readBigUInt64LE(at);
  return BigInt.asUintN(64, sum);
}

// Ordered by incarnation first, opt_steps second; 64-bit numbers are strings here, and an absent version is no model.
function isNewer(one, other) {
  const [a, b] = [one, other].map((version) => [BigInt(version?.incarnation ?? 0), BigInt(version?.opt_steps ?? 0)]);
  return a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]);
}

// What an error says of the future: "again", "stopping", or null: permanent.
function outlook(error) {
  const [name] = error.metadata?.get("crossborder-error") ?? [];
  if (name === "stopping") return "stopping";
  if (name) return ["not_joined", "too_many_actors", "over_limit"].includes(name) ? "again" : null;
  const { INVALID_ARGUMENT, FAILED_PRECONDITION, PERMISSION_DENIED, UNIMPLEMENTED, RESOURCE_EXHAUSTED, UNAUTHENTICATED } =
    grpc.status;
  const permanent = [INVALID_ARGUMENT, FAILED_PRECONDITION, PERMISSION_DENIED, UNIMPLEMENTED, RESOURCE_EXHAUSTED];
  return error.code === undefined || [...permanent, UNAUTHENTICATED].includes(error.code) ? null : "again";
}

// ---- The actor

class Actor {
  constructor(address) {
    const options = { keepCase: true, longs: String, defaults: true };
    const { LearnerService } = grpc.loadPackageDefinition(protoLoader.loadSync(PROTO, options)).crossborder.v1;
    this.client = new LearnerService(address, grpc.credentials.createInsecure());
    this.incarnation = String((randomBytes(8).readBigUInt64LE() >> 1n) + 1n);
    this.seq = 0;
    this.unacked = []; // Batches kept until they are acknowledged, oldest first.
    this.stopping = false;
    this.reconnects = 0;
    this.totals = { env_steps: 0, batches: 0 };
    this.episodes = { returns: [], lengths: [] };
  }

  async run() {
    this.joined = await this.join();
    this.newest = this.joined.newest;
    const conversation = this.stayConnected();
    await Promise.race([this.act(), conversation]);
    await Promise.race([conversation, sleep(FINISH_MS, null, { ref: false })]);
    this.client.close();
    return { ...this.totals, actor_id: this.joined.actor_id, reconnects: this.reconnects, unacked: this.unacked.length };
  }

  async join() {
    const request = { protocol_version: 2, incarnation: this.incarnation, host: hostname(), pid: process.pid };
    const end = Date.now() + PATIENCE_MS;
    for (let ceiling = 100; ; ceiling = Math.min(2 * ceiling, 5_000)) {
      try {
        return await new Promise((resolve, reject) => {
          const done = (error, response) => (error ? reject(error) : resolve(response));
          this.client.Join(request, { deadline: Date.now() + JOIN_MS }, done);
        });
      } catch (error) {
        if (outlook(error) !== "again" || Date.now() > end) throw error;
        await sleep(Math.random() * ceiling);
      }
    }
  }

  // Keep one stream open: when it breaks, join again with the same incarnation and resend what is not stored.
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
      const again = await this.join();
      if (again.run_id !== this.joined.run_id) throw new Error(`another run answers: ${again.run_id}`);
      this.reconnects += 1;
      this.acknowledge(again.last_seq, again.newest);
    }
  }

  async converse() {
    this.stream = this.client.PushItems();
    this.heard = Date.now();
    const heartbeat = setInterval(() => this.beat(), HEARTBEAT_MS);
    try {
      this.stream.write(this.report({}));
      this.unacked.forEach((batch) => this.stream.write(batch));
      this.leaveIfDone();
      for await (const { acked_seq, newest, stop } of this.stream) {
        this.heard = Date.now();
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
    if (Date.now() - this.heard > SILENCE_MS) this.stream.cancel();
    else if (!this.left) this.stream.write(this.report({}));
  }

  acknowledge(seq, newest) {
    this.unacked = this.unacked.filter((batch) => batch.seq > Number(seq));
    if (isNewer(newest, this.newest)) this.newest = newest;
    this.wake?.();
  }

  // The last message, once there is nothing left to push.
  leaveIfDone() {
    if (!this.finished || this.unacked.length || !this.stream || this.left) return;
    this.left = true;
    this.stream.write(this.report({ leaving: true }));
    this.stream.end();
  }

  stop() {
    this.stopping = true;
    this.wake?.();
  }

  // Act with the newest model and push a batch at a time, until told to stop.
  async act() {
    const config = JSON.parse(this.joined.config_json);
    const env = new Corridor(config.env.params.length);
    this.began = Date.now();
    let model = null;
    while (!this.stopping) {
      if (!model || isNewer(this.newest, model.version)) model = (await this.fetch(model?.version)) ?? model;
      if (!model) continue;
      this.push(this.play(env, model.table, config.push.n_buffer), model.version);
      await setImmediate(); // Acknowledgements come in between.
      while (this.unacked.length >= config.push.window && !this.stopping)
        await new Promise((resolve) => (this.wake = resolve));
    }
    this.finished = true;
    this.leaveIfDone();
  }

  // GetModel: chunks in ascending offset, checked by their sum. Null: not modified, or not to be had just now.
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
    if (String(checksum(file)) !== last.checksum) throw new Error("model: another checksum");
    return { version: last.version, table: tensor(file, "table") };
  }

  // So many steps, epsilon-greedy on the table: the items.
  play(env, table, n) {
    return Array.from({ length: n }, () => {
      const obs = env.at;
      const greedy = table[2 * obs + 1] > table[2 * obs] ? 1 : 0;
      const action = Math.random() < this.joined.epsilon ? Math.floor(2 * Math.random()) : greedy;
      const { reward, terminated, truncated } = env.step(action);
      const item = { obs, action, reward, next_obs: env.at, terminated, truncated };
      this.count(env, reward, terminated || truncated);
      return item;
    });
  }

  count(env, reward, done) {
    this.totals.env_steps += 1;
    this.return = (this.return ?? 0) + reward;
    if (!done) return;
    this.episodes.returns.push(this.return);
    this.episodes.lengths.push(env.steps);
    this.return = 0;
    env.reset();
  }

  push(items, behaviour) {
    const { returns, lengths } = this.episodes;
    this.episodes = { returns: [], lengths: [] };
    const batch = {
      ...this.report({ episode_returns: returns, episode_lengths: lengths }),
      seq: (this.seq += 1),
      schema_hash: this.joined.schema.hash,
      rows: items.length,
      payload: pack(this.joined.schema, items),
      behaviour,
    };
    this.totals.batches += 1;
    this.unacked.push(batch);
    this.stream?.write(batch); // Between two streams it waits; the next one sends it.
  }

  // A request with a report and no items: a heartbeat.
  report(more) {
    const seconds = this.began ? (Date.now() - this.began) / 1000 : 0;
    const report = { env_steps: this.totals.env_steps, seconds, reconnects: this.reconnects, ...more };
    return { incarnation: this.incarnation, seq: 0, report };
  }
}

const actor = new Actor(process.argv[2] ?? "127.0.0.1:50051");
process.once("SIGINT", () => actor.stop());
console.log(JSON.stringify(await actor.run()));
