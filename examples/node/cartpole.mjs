// An actor in another language: CartPole-v1 in JavaScript. The learner trains its DQN with configs/cartpole.yaml.
//
//   learner-server --config configs/cartpole.yaml         in one terminal
//   npm install && node cartpole.mjs 127.0.0.1:50051      in another, in this directory
//
// For a learner on another host: node cartpole.mjs HOST:PORT ca.pem actor.token
// With mutual TLS: node cartpole.mjs HOST:PORT ca.pem actor.token actor.pem actor.key
import { setImmediate } from "node:timers/promises";
import { Learner, isNewer } from "./learner.mjs";
import { QNetwork, choose, epsilonAt, readTensors } from "./network.mjs";

// ---- The environment: gymnasium's CartPole-v1

const [GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU] = [9.8, 1.0, 0.1, 0.5, 10.0, 0.02];
const [MAX_X, MAX_ANGLE, MAX_STEPS] = [2.4, (12 * 2 * Math.PI) / 360, 500];

class CartPole {
  reset() {
    this.obs = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05); // Position, velocity, angle, angular velocity.
    this.steps = this.total = 0;
    this.first = true;
  }

  step(action) {
    const [x, v, angle, spin] = this.obs;
    const [sin, cos, mass, moment] = [Math.sin(angle), Math.cos(angle), CART + POLE, POLE * HALF_LENGTH];
    const pull = ((action ? FORCE : -FORCE) + moment * spin * spin * sin) / mass;
    const turn = (GRAVITY * sin - cos * pull) / (HALF_LENGTH * (4 / 3 - (POLE * cos * cos) / mass));
    this.obs = [x + TAU * v, v + TAU * (pull - (moment * turn * cos) / mass), angle + TAU * spin, spin + TAU * turn];
    this.steps += 1;
    this.total += 1;
    const terminated = Math.abs(this.obs[0]) > MAX_X || Math.abs(this.obs[2]) > MAX_ANGLE;
    return { reward: 1, terminated, truncated: !terminated && this.steps === MAX_STEPS };
  }
}

// ---- The actor

class Actor {
  constructor(learner) {
    this.learner = learner;
    this.rows = [];
    this.episodes = { returns: [], lengths: [] };
  }

  // Act with the newest model and push a batch at a time, until told to stop.
  async act() {
    const { env, agent, push, envs_per_actor: lanes } = JSON.parse(this.learner.joined.config_json);
    if (env.params.id !== "CartPole-v1") throw new Error(`env: expected CartPole-v1, found ${env.params.id}`);
    const began = performance.now();
    const envs = Array.from({ length: lanes }, () => new CartPole());
    envs.forEach((each) => each.reset());
    while (!this.learner.stopping) {
      await this.follow();
      if (!this.model) continue;
      const optSteps = Number(this.model.version.opt_steps);
      const epsilon = epsilonAt(optSteps, this.learner.joined.epsilon, agent.params.explorer);
      while (this.rows.length < push.n_buffer) envs.forEach((each, lane) => this.record(each, lane, optSteps, epsilon));
      this.learner.figures.seconds = (performance.now() - began) / 1000;
      await this.flush();
      await setImmediate(); // Lets the stream receive acknowledgements.
    }
    await this.flush();
  }

  // Load the newest model.
  async follow() {
    if (this.model && !isNewer(this.learner.newest, this.model.version)) return;
    const fetched = await this.learner.fetch(this.model?.version);
    if (fetched) this.model = { version: fetched.version, network: new QNetwork(readTensors(fetched.file)) };
  }

  // One step of one lane as a row, and at the end of its episode the final row.
  record(env, lane, version, epsilon) {
    const { obs, first } = env;
    const action = choose(this.model.network.values(obs), epsilon);
    const outcome = env.step(action);
    env.first = false;
    this.learner.figures.env_steps += 1;
    this.rows.push({ obs, action, ...outcome, version, first, final: false, lane });
    if (!outcome.terminated && !outcome.truncated) return;
    const nothing = { action, reward: 0, terminated: false, truncated: false, first: false };
    this.rows.push({ ...nothing, obs: env.obs, version, final: true, lane });
    this.episodes.returns.push(env.total);
    this.episodes.lengths.push(env.steps);
    env.reset();
  }

  async flush() {
    if (!this.rows.length) return;
    const { rows, episodes } = this;
    this.rows = [];
    this.episodes = { returns: [], lengths: [] };
    await this.learner.push(rows, this.model.version, episodes);
    this.batches = (this.batches ?? 0) + 1;
  }
}

const [address = "127.0.0.1:50051", ca, tokenFile, certificate, key] = process.argv.slice(2);
let learner, actor;
process.once("SIGINT", () => learner.stop());
do {
  learner = new Learner(address, { ca, tokenFile, certificate, key }, learner?.holdsId);
  actor = new Actor(learner);
  await learner.serve(() => actor.act());
} while (learner.startsOver);
const { env_steps, reconnects } = learner.figures;
const said = { actor_id: learner.joined.actor_id, env_steps, reconnects, unacked: learner.unacked.length };
console.log(JSON.stringify({ ...said, batches: actor.batches ?? 0 }));
