"""Your own agent with a memory: an LSTM learns CartPole from positions alone, as R2D2 does (Kapturowski et al. 2019).

Run: learner-server --config examples/recurrent_cartpole.yaml --local-actors 1
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

import crossborder as cb

WIDTH, BATCH_SIZE, N_STEPS, TAU = 64, 32, 5, 0.01


class QLstm(nn.Module):
    """Rescaled values of A actions after each of T observations ``[B, T, D]``, from states ``[B, 2, WIDTH]``."""

    def __init__(self, n_inputs: int, n_actions: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n_inputs, WIDTH), nn.ReLU())
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, n_actions)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, cell = (part[None].contiguous() for part in state.unbind(dim=1))
        outputs, (hidden, cell) = self.lstm(self.encoder(obs), (hidden, cell))
        return self.head(outputs), torch.stack((hidden[0], cell[0]), dim=1)  # [B, T, A], [B, 2, WIDTH]


class LstmDqn(cb.NetworkAgent):
    """Double DQN on sequences that begin with the state that the actor had there."""

    counters = ("opt_steps",)
    keeps_to_episodes = True  # Its sequences do not begin anew in the middle.

    def __init__(
        self, spec: cb.EnvSpec, *, seed: int, epsilon: float, device: str, discount_factor: float = 0.99
    ) -> None:
        torch.manual_seed(seed)
        (n_inputs,), n_actions = self.require_box(spec).shape, int(spec.action_space.n)  # type: ignore[attr-defined]
        self.device, self.epsilon = torch.device(device), epsilon
        self.rng, self.lane_random = np.random.default_rng(seed), cb.LaneRandom(seed)
        self.gamma = discount_factor
        self.qnet, self.qnet_tgt = (QLstm(n_inputs, n_actions).to(device) for _ in range(2))
        self.qnet_tgt.load_state_dict(self.qnet.state_dict())
        self.nets = {"qnet": self.qnet, "qnet_tgt": self.qnet_tgt}
        self.optimizer = cb.adam(self.qnet.parameters(), lr=1e-3)
        self.learn = cb.Update(self._learn_from, self.nets)
        self.explorer, self.opt_steps = cb.EpsilonGreedy(final_step=4000), 0
        self.memory = cb.LaneMemory(2, WIDTH, device=device)

    def begin(self, begins: cb.Array, lanes: cb.Array | None = None) -> None:
        self.memory.begin(begins, lanes, is_train=self.is_train)

    @torch.inference_mode()
    def sample(self, obs: cb.Array, lanes: cb.Array | None = None) -> cb.Array:
        self.before = self.memory.read(lanes, is_train=self.is_train)  # [n, 2, WIDTH]
        outputs, after = self.qnet(torch.from_numpy(obs)[:, None].to(self.device), self.before)
        self.memory.write(after, lanes, is_train=self.is_train)
        values = outputs[:, 0].numpy(force=True)  # [n, A]
        rng = self.rng if lanes is None else self.lane_random.of(lanes)
        return self.explorer.choose(values, self.opt_steps, self.epsilon, rng) if self.is_train else values.argmax(1)

    def extra_columns(self) -> Sequence[cb.Column]:
        return [cb.Column.of("state", np.float32, (2, WIDTH))]

    def extras(self) -> cb.Items:
        return {"state": self.before.numpy(force=True)}

    def sync_model(self, model: cb.Model) -> None:
        super().sync_model(model)
        self.opt_steps = model.version.opt_steps

    def opt(self, buffer: cb.ReplayBuffer) -> cb.Record | None:
        if len(buffer) == 0:
            return None
        self.opt_steps += 1
        return {**self.learn(cb.draw(buffer, BATCH_SIZE, self.device))}

    def _learn_from(self, batch: cb.Batch) -> cb.Results:
        obs, state, mask = batch["obs"], batch["state"], batch["mask"]
        values = self.qnet(obs, state)[0]  # [B, L + 1, A]
        chosen = values[:, :-1].gather(2, batch["action"][..., None]).squeeze(2)  # [B, L]
        with torch.no_grad():
            best = values[:, 1:].argmax(dim=2, keepdim=True)
            next_value = cb.undo_rescaling(self.qnet_tgt(obs, state)[0][:, 1:].gather(2, best).squeeze(2))
            reward, terminated = batch["reward"], batch["terminated"]
            target = cb.n_step_target(reward, terminated, mask, next_value, discount=self.gamma, n=N_STEPS)
        losses = nn.functional.smooth_l1_loss(chosen, cb.rescale(target), reduction="none")
        loss = cb.masked_mean(losses, batch["warm"])  # Until it is warmed up, the state is that of an older network.
        cb.descend(loss, self.optimizer, max_grad_norm=10)
        cb.track(self.qnet_tgt, self.qnet, TAU)
        return {"loss": loss.detach()}
