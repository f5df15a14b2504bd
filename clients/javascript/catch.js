// The game of the example: a ball falls, and a paddle catches it. Lengths are in widths of the field.

export const [SPEED, REACH, BALLS] = [0.05, 0.1, 100];

export class Catch {
  reset() {
    [this.x, this.y, this.paddle] = [Math.random(), 1, 0.5];
    this.drift = 0.04 * Math.random() - 0.02;
    return this.look();
  }

  step(action) {
    this.paddle = Math.min(Math.max(this.paddle + SPEED * (action - 1), 0), 1);
    this.x += this.drift;
    this.y -= SPEED;
    if (this.x < 0 || this.x > 1) [this.x, this.drift] = [Math.min(Math.max(this.x, 0), 1), -this.drift];
    const done = this.y < SPEED / 2;
    const reward = done ? (Math.abs(this.x - this.paddle) <= REACH ? 1 : -1) : 0;
    return { observation: this.look(), reward, done };
  }

  look() {
    return [2 * this.x - 1, 2 * this.y - 1, 25 * this.drift, 2 * this.paddle - 1];
  }
}

// Play for ever. `onStep` is called after each step, and may return a promise to wait for; `onBall` after each ball with
// the number of balls so far, and how many of the last 100 were caught.
export async function play(session, game, onStep, onBall) {
  const last = [];
  for (let n = 1; ; n += 1) {
    let action = await session.act(game.reset());
    for (let done = false; !done; ) {
      let observation, reward;
      ({ observation, reward, done } = game.step(action));
      action = await session.act(observation, reward, done);
      await onStep();
      if (done) last.push(reward > 0 ? 1 : 0);
    }
    if (last.length > BALLS) last.shift();
    onBall(n, last.reduce((sum, each) => sum + each, 0));
  }
}
