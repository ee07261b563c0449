"""optim.json: optimiser trajectories, learning-rate and gamma schedules, in float64."""

import math

import torch

from golden import hashed, save_json

STEPS = 6
RAMP = [0.1, 0.2, 0.3, 0.25, 0.15, 0.05]

CASES = [
    {"name": "sgd_nesterov", "kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
    {"name": "sgd", "kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 1e-4},
    {"name": "adamw", "kind": "adamw", "lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1},
    {"name": "paper_momentum", "kind": "paper_momentum", "lr": 0.5, "beta": 0.1},
    {"name": "lars", "kind": "lars", "lr": 0.3, "trust": 0.001, "momentum": 0.9, "weight_decay": 1e-6},
    {"name": "lars_decay", "kind": "lars", "lr": 0.3, "trust": 0.001, "momentum": 0.9, "weight_decay": 0.1},
    {"name": "lars_schedule", "kind": "lars", "lr": RAMP, "trust": 0.001, "momentum": 0.9, "weight_decay": 1e-6},
    {"name": "lars_zero", "kind": "lars", "lr": RAMP, "trust": 0.001, "momentum": 0.9, "weight_decay": 0.1},
]


class PaperMomentum:
    """v = (1-β)v + βm, v_0 = 0;  w -= ηv"""

    def __init__(self, parameters, beta):
        self.parameters, self.beta = parameters, beta
        self.v = [torch.zeros_like(w) for w in parameters]

    def step(self, lr):
        for w, v in zip(self.parameters, self.v):
            v.mul_(1 - self.beta).add_(self.beta * w.grad)
            w.data -= lr * v


class Lars:
    """v = μv + ratio*lr*g, w -= v;  ratio = trust*‖w‖/‖g + wd*w‖ (1 if a norm is 0); 1-D: ratio 1, no decay"""

    def __init__(self, parameters, trust, momentum, weight_decay):
        self.parameters, self.trust, self.momentum, self.weight_decay = parameters, trust, momentum, weight_decay
        self.v = [torch.zeros_like(w) for w in parameters]

    def step(self, lr):
        for w, v in zip(self.parameters, self.v):
            g, ratio = w.grad, 1.0
            if w.ndim > 1:
                g = g + self.weight_decay * w.data
                w_norm, g_norm = w.data.norm().item(), g.norm().item()
                if w_norm > 0 and g_norm > 0:
                    ratio = self.trust * w_norm / g_norm
            v.mul_(self.momentum).add_(ratio * lr * g)
            w.data -= v


def run(case, initial, grads):
    parameters = {name: value.clone().requires_grad_() for name, value in initial.items()}
    settings = {key: value for key, value in case.items() if key not in ["name", "kind", "lr"]}
    lr = case["lr"] if isinstance(case["lr"], list) else [case["lr"]] * STEPS
    tensors = list(parameters.values())
    if case["kind"] == "sgd":
        optimiser = torch.optim.SGD(tensors, lr=lr[0], **settings)
    elif case["kind"] == "adamw":
        # Vectors do not decay, as open_clip groups them.
        decayed, others = [w for w in tensors if w.ndim > 1], [w for w in tensors if w.ndim < 2]
        optimiser = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=lr[0], **settings)
    elif case["kind"] == "paper_momentum":
        optimiser = PaperMomentum(tensors, **settings)
    else:
        optimiser = Lars(tensors, **settings)

    after = {name: [] for name in parameters}
    for t in range(STEPS):
        for name, w in parameters.items():
            w.grad = grads[name][t].clone()
        optimiser.step() if isinstance(optimiser, torch.optim.Optimizer) else optimiser.step(lr[t])
        for name, w in parameters.items():
            after[name].append(w.tolist())
    return case | {
        "lr": lr,
        "initial": {name: value.tolist() for name, value in initial.items()},
        "after": after,
    }


def warmup_cosine(t, total, warmup, peak):
    """t < W: peak*t/W;  else peak*½(1 + cos(π(t-W)/(T-W)))"""
    if t < warmup:
        return peak * t / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (t - warmup) / (total - warmup)))


def cosine_gamma(epoch, gamma_min, decay_epochs):
    """e < E: γmin + (1-γmin)*½(1 + cos(πe/E));  else γmin"""
    if epoch >= decay_epochs:
        return gamma_min
    return gamma_min + (1 - gamma_min) * 0.5 * (1 + math.cos(math.pi * epoch / decay_epochs))


def main():
    initial = {"w": hashed("optim.w", 3, 4), "b": hashed("optim.b", 4)}
    grads = {"w": 2 * hashed("optim.w.grad", STEPS, 3, 4), "b": 2 * hashed("optim.b.grad", STEPS, 4)}
    zero = initial | {"w": torch.zeros(3, 4, dtype=torch.float64)}
    batches = [32, 64, 128, 256, 512, 1024, 4096, 8192]
    save_json(
        "optim.json",
        {
            "grads": {name: value.tolist() for name, value in grads.items()},
            "cases": [run(case, zero if case["name"] == "lars_zero" else initial, grads) for case in CASES],
            "warmup_cosine": {
                "total": 20,
                "warmup": 5,
                "peak": 0.3,
                "lr": [warmup_cosine(t, 20, 5, 0.3) for t in range(21)],
            },
            "cosine_gamma": {
                "gamma_min": 0.2,
                "decay_epochs": 5,
                "gamma": [cosine_gamma(e, 0.2, 5) for e in range(9)],
            },
            "scaling": {
                "batch": batches,
                "square_root": [0.075 * math.sqrt(b) for b in batches],
                "linear": [0.3 * b / 256 for b in batches],
            },
        },
    )


if __name__ == "__main__":
    main()
