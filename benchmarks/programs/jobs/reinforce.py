"""The loop of pytorch/examples' reinforcement_learning."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Categorical


class CartPole:
    """A pole on a cart, with the equations of the textbook."""

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        x, v, angle, speed = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * speed**2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * push) / (
            0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
        )
        slide = push - 0.05 * turn * math.cos(angle) / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * slide, angle + 0.02 * speed, speed + 0.02 * turn]
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


random.seed(0)
torch.manual_seed(543)
policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
environment = CartPole()
for episode in range(60):
    state, logs = environment.reset(), []
    for _ in range(200):
        chosen = Categorical(F.softmax(policy(torch.tensor([state])), dim=1))
        action = chosen.sample()
        logs.append(chosen.log_prob(action))
        state, done = environment.step(action.item())
        if done:
            break
    returns, total = [], 0.0
    for _ in logs:
        total = 1.0 + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    optimizer.zero_grad()
    loss = torch.cat([-log * value for log, value in zip(logs, returns)]).sum()
    loss.backward()
    optimizer.step()
print(episode, len(logs))
