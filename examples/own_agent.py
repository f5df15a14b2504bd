"""Your own fast agent: Munchausen DQN (arXiv:2007.14430). Its updates are captured, like those of crossborder's agents.

Run: learner-server --config examples/own_agent.yaml --local-actors 2
"""

import numpy as np
import torch

import crossborder as cb

TEMPERATURE, ALPHA, TAU = 0.03, 0.9, 0.01


class MunchausenDQN(cb.NetworkAgent):
    """Soft Q-learning whose reward is raised by ``ALPHA`` times the log-probability of the action taken."""

    def __init__(
        self, spec: cb.EnvSpec, *, seed: int, epsilon: float, device: str, discount_factor: float = 0.99
    ) -> None:
        torch.manual_seed(seed)
        shape, n_actions = self.require_box(spec).shape, int(spec.action_space.n)  # type: ignore[attr-defined]
        self.device, self.epsilon, self.rng = torch.device(device), epsilon, np.random.default_rng(seed)
        self.qnet, self.qnet_tgt = (cb.Mlp(shape, n_actions, (128, 128)).to(device) for _ in range(2))
        self.qnet_tgt.load_state_dict(self.qnet.state_dict())
        self.nets = {"qnet": self.qnet, "qnet_tgt": self.qnet_tgt}  # The first one acts; `_tgt` is a target.
        self.gamma, self.optimizer = discount_factor, cb.adam(self.qnet.parameters(), lr=1e-3)
        self.learn = cb.Update(self._learn_from, self.nets, captured=True)
        self.values = cb.Inference(self.qnet, self.device, captured=True)

    def sample(self, obs: cb.Array) -> cb.Array:
        values = self.values(obs)  # [n, A]
        explore = self.rng.random(len(obs)) < (self.epsilon if self.is_train else 0.0)
        return np.where(explore, self.rng.integers(values.shape[1], size=len(obs)), values.argmax(axis=1))

    def opt(self, buffer: cb.ReplayBuffer) -> cb.Record | None:
        return None if len(buffer) == 0 else {**self.learn(cb.draw(buffer, 64, self.device))}

    def _learn_from(self, batch: cb.Batch) -> cb.Results:
        action = batch["action"][:, None]
        with torch.no_grad():
            log_policy = (self.qnet_tgt(batch["obs"]) / TEMPERATURE).log_softmax(dim=1).gather(1, action).squeeze(1)
            value = TEMPERATURE * (self.qnet_tgt(batch["next_obs"]) / TEMPERATURE).logsumexp(dim=1)  # [B]
            future = cb.discount_of(batch, self.gamma) * value * ~batch["terminated"]
            target = batch["reward"] + ALPHA * (TEMPERATURE * log_policy).clamp(min=-1) + future
        loss = torch.nn.functional.smooth_l1_loss(self.qnet(batch["obs"]).gather(1, action).squeeze(1), target)
        cb.descend(loss, self.optimizer, max_grad_norm=10)
        cb.track(self.qnet_tgt, self.qnet, TAU)
        return {"loss": loss.detach()}
