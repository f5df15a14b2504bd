// A client of crossborder's acting service, for browsers and Node 22 or later, without any package: copy this file.
//
//   import { Session } from "./crossborder.js";
//
//   const session = await Session.open("ws://127.0.0.1:50061");
//   let action = await session.act(observation);           // the first observation of an episode
//   action = await session.act(observation, reward);       // each further one, and the reward of the step before it
//   await session.act(observation, reward, true);          // the last one: terminated; what it returns has no meaning

const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];
const TYPES = {
  "|u1": [Uint8Array, Uint8ClampedArray], "|i1": [Int8Array], "<u2": [Uint16Array], "<i2": [Int16Array],
  "<u4": [Uint32Array], "<i4": [Int32Array], "<f4": [Float32Array], "<f8": [Float64Array],
};

/**
 * The service has refused a message: `code` says why. After "bad_message", call `act` again as it should be.
 * "run_over": the run that the service acts for has ended, and so should the client.
 */
export class RefusedError extends Error {
  constructor(code, message) {
    super(`${code}: ${message}`);
    this.name = "RefusedError";
    this.code = code;
  }
}

/** The connection has broken, or its answer does not come. */
class BrokenError extends Error {}

/**
 * A session of an acting service. If its connection breaks, it connects again, and its episodes go on.
 *
 * If the service itself was started anew, another session begins, in which the rest of an episode counts as an episode,
 * and `losses` is one more. `description` has the leaves of observations and actions, `seed + i` is for the random
 * generator of lane i, and `version` is the model that chose last, by its opt steps.
 */
export class Session {
  /**
   * Open a session.
   *
   * @param {string} address what `policy-server --websocket` listens on: ws://HOST:PORT, or with TLS wss://HOST:PORT.
   * @param {object} [options]
   * @param {string} [options.token] by which the service knows this client.
   * @param {number} [options.lanes] how many characters or copies of a game act; they are counted from 0.
   * @param {number} [options.timeout] seconds after which a connection without an answer counts as broken.
   * @param {number} [options.patience] seconds after which a service that is out of reach is given up, or has no room.
   * @param {string} [options.policy] the name of one, if the service has several; empty: the first.
   * @throws {RefusedError} the token is not valid, there is no such policy, or no room ("over_limit").
   * @throws {Error} the service is out of reach.
   */
  static async open(address, { token = "", lanes = 1, timeout = 60, patience = 120, policy = "" } = {}) {
    const { protocol, hostname } = new URL(address);
    if (protocol !== "ws:" && protocol !== "wss:") {
      throw new TypeError(`address: expected ws://HOST:PORT or wss://HOST:PORT, found ${address}`);
    }
    if (token && protocol === "ws:" && !LOOPBACK.includes(hostname)) {
      throw new TypeError(`address: expected wss://, since a token needs TLS, found ${address}`);
    }
    const session = new Session();
    Object.assign(session, { address, token, lanes, timeout, patience, policy });
    Object.assign(session, { description: null, seed: 0, version: 0, losses: 0 });
    await session.#take(() => session.#persist(async () => {}));
    return session;
  }

  #wire = null;
  #secret = "";
  #seq = 0;
  #last = new Map(); // The last action of each lane.
  #playing = new Set(); // Lanes within an episode.
  #broken = new Set(); // Those of them whose session was lost.
  #turn = Promise.resolve(); // Settles when all calls before have their answers.

  /**
   * The action of one lane: a number, or arrays of numbers; of several leaves an object by path.
   *
   * @param observation a number, arrays, or a typed array; of several leaves an object by path, such as "arm/joints".
   * @param {number} [reward] of the step before.
   * @param {boolean} [terminated] the step before has ended the episode by its own rules.
   * @param {boolean} [truncated] the episode was cut off from outside, as by a limit of time.
   * @param {object} [more]
   * @param {number} [more.lane] which one.
   * @param {boolean} [more.restarted] the episode before broke off without an end; this begins the next one.
   * @param [more.executed] the action of the step before, if a person or a safety layer has chosen it.
   */
  async act(observation, reward = 0, terminated = false, truncated = false, { lane = 0, restarted = false, executed } = {}) {
    return (await this.#actAll([{ lane, observation, reward, terminated, truncated, restarted, executed }]))[0];
  }

  /**
   * The actions of several lanes at once.
   *
   * @param {Array} observations one for each lane.
   * @param {object} [more] arrays with a value for each lane, all of which may be absent.
   * @param {number[]} [more.lanes] by default all.
   */
  async actLanes(observations, { rewards, terminated, truncated, lanes, restarted, executed } = {}) {
    const chosen = lanes ?? [...Array(this.lanes).keys()];
    for (const each of [observations, rewards, terminated, truncated, restarted, executed]) {
      if (each && each.length !== chosen.length) {
        throw new TypeError(`expected ${chosen.length} values, one for each lane, found ${each.length}`);
      }
    }
    const steps = chosen.map((lane, i) => ({
      lane, observation: observations[i], reward: rewards?.[i], terminated: terminated?.[i],
      truncated: truncated?.[i], restarted: restarted?.[i], executed: executed?.[i],
    }));
    return this.#actAll(steps);
  }

  /** End the session. The service frees its lanes. */
  close() {
    return this.#take(async () => {
      const wire = this.#wire;
      this.#wire = null;
      if (wire) await wire.ask({ close: {} }, "closed", this.timeout).catch(() => wire.close()); // It ends the connection.
    });
  }

  #actAll(steps) {
    return this.#take(async () => {
      await this.#persist((wire) => this.#ask(wire, steps));
      return steps.map(({ lane }) => this.#last.get(lane));
    });
  }

  /** Do work after all that was begun before. */
  #take(work) {
    const done = this.#turn.then(work);
    this.#turn = done.catch(() => {});
    return done;
  }

  /** Do work with a connection. If it breaks, connect again and do the work again. */
  async #persist(work) {
    let end = performance.now() + 1000 * this.patience; // No wall clock, which may jump.
    for (let delay = 100; ; delay = Math.min(2 * delay, 5000)) {
      let wire = this.#wire;
      try {
        wire ??= await this.#connect();
        return await work(wire);
      } catch (error) {
        this.#wire?.close();
        this.#wire = null;
        if (error.code === "session_lost" || error.code === "stopping") {
          this.losses += this.#secret ? 1 : 0;
          this.#secret = "";
          this.#broken = new Set(this.#playing);
        } else if (error.code !== "over_limit" && !(error instanceof BrokenError)) throw error;
        if (wire && error.isLate) end = performance.now() + 1000 * this.patience; // A learner may hold its actors back.
        else if (performance.now() > end && error.code === "over_limit") throw error; // It is not out of reach: it has no room.
        else if (performance.now() > end) throw new Error(`${this.address}: ${error.message} (for ${this.patience} s)`);
      }
      await new Promise((resolve) => setTimeout(resolve, Math.random() * delay));
    }
  }

  /** Open a connection, and with it a session, or the one that this client had. */
  async #connect() {
    const seconds = Math.min(this.timeout, this.patience);
    const wire = (this.#wire = new Wire(this.address));
    await wire.opened(seconds);
    const token = this.token ? { token: this.token } : {};
    this.description = await wire.ask({ ...token, describe: { policy: this.policy } }, "description", seconds);
    if (this.#secret) await wire.ask({ resume: { secret: this.#secret } }, "opened", seconds);
    else {
      const { secret, seed } = await wire.ask({ open: { lanes: this.lanes, policy: this.policy } }, "opened", seconds);
      [this.#secret, this.seed, this.#seq] = [secret, seed, 0];
    }
    return wire;
  }

  /** Ask for actions. Of a lost episode the end is not told: it needs no action. */
  async #ask(wire, steps) {
    const ends = ({ terminated, truncated }) => Boolean(terminated || truncated);
    const asked = steps.filter((step) => !(this.#broken.has(step.lane) && ends(step)));
    if (asked.length) {
      const step = { seq: this.#seq + 1, ...this.#fields(asked) };
      const { seq, action, version } = await wire.ask({ step }, "action", this.timeout);
      [this.#seq, this.version] = [seq, version];
      asked.forEach(({ lane }, i) => this.#last.set(lane, pick(action, i)));
    }
    for (const step of steps) {
      this.#broken.delete(step.lane);
      if (ends(step)) this.#playing.delete(step.lane);
      else this.#playing.add(step.lane);
    }
  }

  /** The fields of a message. Nothing is told of the step before it, if that was in a lost session. */
  #fields(steps) {
    const told = steps.map((step) => (this.#broken.has(step.lane) ? { lane: step.lane, observation: step.observation } : step));
    const fields = {
      lanes: told.map(({ lane }) => lane),
      observation: this.#pack("observation", told.map(({ observation }) => observation)),
      reward: told.map(({ reward }) => reward ?? 0),
    };
    for (const name of ["terminated", "truncated", "restarted"]) fields[name] = told.map((step) => step[name] ?? false);
    const given = told.find(({ executed }) => executed != null);
    if (given) {
      const acted = told.map(({ lane, executed }) => executed ?? this.#last.get(lane) ?? given.executed);
      fields.executed = this.#pack("action", acted);
      fields.intervened = told.map(({ executed }) => executed != null);
    }
    return fields;
  }

  /** The values of k lanes as the service takes them: of several leaves an object by path. */
  #pack(kind, values) {
    const leaves = Object.fromEntries(this.description[kind].map((leaf) => [leaf.path, leaf]));
    if (!isObject(values[0])) return packLeaf(values, leaves[""]);
    return Object.fromEntries(Object.keys(values[0]).map((path) => [path, packLeaf(values.map((each) => each[path]), leaves[path])]));
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !ArrayBuffer.isView(value);
}

/** The action of one lane among those of k lanes. */
function pick(actions, i) {
  return Array.isArray(actions) ? actions[i] : Object.fromEntries(Object.entries(actions).map(([path, each]) => [path, each[i]]));
}

/** The values of k lanes: bytes, in base64, if they are typed arrays of the leaf's kind; else arrays. */
function packLeaf(values, leaf) {
  const isOfKind = (value) => TYPES[leaf?.dtype]?.includes(value?.constructor) && value.length === values[0].length;
  if (!values.every(isOfKind)) return values.map((value) => (ArrayBuffer.isView(value) ? Array.from(value) : value));
  let text = "";
  for (const { buffer, byteOffset, byteLength } of values) {
    for (let at = 0; at < byteLength; at += 8192) {
      text += String.fromCharCode(...new Uint8Array(buffer, byteOffset + at, Math.min(8192, byteLength - at)));
    }
  }
  return btoa(text);
}

function refusal({ error }) {
  return new RefusedError(error.name, error.message);
}

/** One connection. Its messages are JSON, and each is answered. */
class Wire {
  #socket;
  #settle = null; // Ends the wait for the next message.
  #ended = null; // Why the connection has ended.

  constructor(address) {
    this.#socket = new WebSocket(address);
    this.#socket.onopen = () => this.#settle?.(null, {});
    this.#socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (this.#settle) this.#settle(null, message);
      else if (message.error) this.#ended = refusal(message); // It came between two steps.
    };
    this.#socket.onerror = () => this.#settle?.(new BrokenError("no connection")); // Not everywhere does onclose follow.
    this.#socket.onclose = ({ code, reason }) => {
      this.#ended ??=
        code === 1009
          ? new RefusedError("message_too_big", "expected at most max_message_bytes in a message")
          : new BrokenError(`no connection: ${reason || code}`);
      this.#settle?.(this.#ended);
    };
  }

  /** Wait until the connection stands. */
  opened(seconds) {
    return this.#next(seconds);
  }

  /** Send a message and wait for the answer of a kind. */
  async ask(values, kind, seconds) {
    if (this.#ended) throw this.#ended;
    const next = this.#next(seconds);
    this.#socket.send(JSON.stringify(values));
    const answer = await next;
    if (answer.error) throw refusal(answer);
    return answer[kind];
  }

  #next(seconds) {
    return new Promise((resolve, reject) => {
      const late = Object.assign(new BrokenError(`no answer for ${seconds} s`), { isLate: true });
      const timer = setTimeout(() => this.#settle(late), 1000 * seconds);
      this.#settle = (error, message) => {
        clearTimeout(timer);
        this.#settle = null;
        if (error) reject(error);
        else resolve(message);
      };
    });
  }

  close() {
    this.#socket.onclose = null;
    this.#settle = null;
    this.#socket.close();
  }
}
