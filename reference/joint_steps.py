"""joint_steps.safetensors, joint_steps.json: a tiny network trained for six steps with BYOL, SimSiam, Barlow Twins and
VICReg: the loss of each step, and every parameter after the last."""

import copy
import math

import torch
from torch import nn

from golden import hashed, save_json, save_tensors
from joint import CONFIGS, evaluate

B, T = 5, 6
INPUT, FEATURES, DIM, HIDDEN = 6, 5, 4, 3
LR, MOMENTUM = 0.05, 0.9


class Online(nn.Module):
    """encoder and head: x [B, 6] -> z [B, 4]"""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(INPUT, FEATURES, bias=False)
        self.head = nn.Linear(FEATURES, DIM)

    def forward(self, x):
        return self.head(self.encoder(x))


class Predictor(nn.Module):
    """z [B, 4] -> p [B, 4], one view at a time"""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(DIM, HIDDEN, bias=False)
        self.bn = nn.BatchNorm1d(HIDDEN)
        self.output = nn.Linear(HIDDEN, DIM)
        # the running statistics had they moved once in a step, towards the mean over the views
        self.once = [torch.zeros(HIDDEN, dtype=torch.float64), torch.ones(HIDDEN, dtype=torch.float64)]

    def forward(self, z):
        h = self.bn(self.hidden(z))
        assert h.abs().min() > 2e-3  # rounding moves none across ReLU's kink
        return self.output(h.relu())

    @torch.no_grad()
    def move_once(self, views):
        h = torch.stack([self.hidden(z) for z in views])
        seen = [h.mean(1).mean(0), h.var(1).mean(0)]
        self.once = [0.9 * old + 0.1 * new for old, new in zip(self.once, seen)]


def fill(module, prefix=""):
    """r by the parameter's name, 1 + 0.2r for the batch norm's weight"""
    for name, p in module.named_parameters():
        r = hashed(prefix + name, *p.shape)
        p.data = 1 + 0.2 * r if name == "bn.weight" else r
    return module.double()


def inputs():
    """two noisy views of the same numbers   [T, B, 6] each, float32 numbers"""
    x = hashed("images", T, B, INPUT)
    return {name: (x + 0.4 * hashed(name, T, B, INPUT)).float().double() for name in ["x_a", "x_b"]}


def momentum(t):
    """m_t = 1 - (1 - m_0)(cos(πt/T) + 1)/2"""
    return 1 - (1 - MOMENTUM) * (math.cos(math.pi * t / T) + 1) / 2


def train(kind, x, config):
    online, predictor = fill(Online()), fill(Predictor(), "predictor.")
    target = copy.deepcopy(online)
    has_predictor, has_target = kind in ("byol", "simsiam"), kind == "byol"
    trained = list(online.parameters()) + (list(predictor.parameters()) if has_predictor else [])
    optimizer = torch.optim.SGD(trained, lr=LR)
    losses = []
    for t in range(T):
        sets = {"z_a": online(x["x_a"][t]), "z_b": online(x["x_b"][t])}
        if has_predictor:
            predictor.move_once([sets["z_a"], sets["z_b"]])
            sets |= {"p_a": predictor(sets["z_a"]), "p_b": predictor(sets["z_b"])}
        if has_target:
            with torch.no_grad():
                sets |= {"k_a": target(x["x_a"][t]), "k_b": target(x["x_b"][t])}
        loss = evaluate(kind, sets, config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        # k <- m k + (1 - m) q, q after the update
        with torch.no_grad():
            for k, q in zip(target.parameters(), online.parameters()):
                k.copy_(momentum(t) * k + (1 - momentum(t)) * q)

    tensors = {"loss": torch.stack(losses)} | dict(online.named_parameters())
    if has_predictor:
        state = predictor.state_dict()
        tensors |= {f"predictor.{name}": v for name, v in state.items() if "num_batches" not in name}
        tensors |= {f"predictor.bn.{name}_once": v for name, v in zip(["running_mean", "running_var"], predictor.once)}
    if has_target:
        tensors |= {f"target.{name}": v for name, v in target.named_parameters()}
    return tensors


def main():
    x = inputs()
    tensors, configs = dict(x), {kind: of_kind[0] for kind, of_kind in CONFIGS.items()}
    for kind, config in configs.items():
        tensors |= {f"{kind}.{name}": value for name, value in train(kind, x, config).items()}
    save_tensors("joint_steps.safetensors", tensors)
    save_json(
        "joint_steps.json",
        {
            "batch": B,
            "steps": T,
            "input": INPUT,
            "features": FEATURES,
            "dim": DIM,
            "hidden": HIDDEN,
            "lr": LR,
            "momentum": [momentum(t) for t in range(T)],
            "configs": configs,
        },
    )


if __name__ == "__main__":
    main()
