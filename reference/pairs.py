"""pairs.safetensors, pairs.json: losses of image–text pairs step by step, with their state and learned parameters."""

import math

import torch
from torch.nn.functional import cross_entropy, logsigmoid, normalize

from golden import save_json, save_tensors
from losses import INF, log_mix

N, B, D, T = 9, 4, 6, 10
CONFIGS = [{"tau": 0.07, "gamma": 0.8}, {"tau": 0.5, "gamma": 0.3}, {"tau": 0.01, "gamma": 0.6}]
INDIVIDUAL = {"rho": 0.4, "rate": 0.05, "beta": 0.7, "clip": 5.0, "range": [0.005, 0.7]}
RHO, BIAS = 6.5, -3.0
KINDS = ["clip", "siglip", "sogclr", "sogclr_positive", "isogclr", "fastclip"]


def inputs():
    g = torch.Generator().manual_seed(77)
    images = torch.randn(T, B, D, generator=g) * (0.5 + torch.rand(T, B, 1, generator=g))
    texts = 1.5 * (images + 0.8 * torch.randn(T, B, D, generator=g))
    ids = [torch.tensor([3, 0, 2, 1]), torch.tensor([1, 4, 5, 0])]
    ids += [torch.randperm(N, generator=g)[:B] for _ in range(T - len(ids))]
    return images, texts, torch.stack(ids)


def clip(s, tau):
    """½ CE over rows + ½ CE over columns; ∂/∂ln(1/τ)"""
    log_scale = torch.tensor(-math.log(tau), dtype=torch.float64, requires_grad=True)
    logits, target = s * log_scale.exp(), torch.arange(B)
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2, {"log_scale": log_scale}


def siglip(s, tau):
    log_scale = torch.tensor(-math.log(tau), dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(BIAS, dtype=torch.float64, requires_grad=True)
    sign = 2 * torch.eye(B, dtype=torch.float64) - 1
    loss = -logsigmoid(sign * (s * log_scale.exp() + bias)).sum() / B
    return loss, {"log_scale": log_scale, "bias": bias}


def two_way(kind, s, state, ids, gamma):
    """-> surrogate, objective, the new (ln u, τ, v) of images and texts; s [B, B], images × texts"""
    keep = torch.ones(B, B, dtype=torch.bool) if kind == "sogclr_positive" else ~torch.eye(B, dtype=torch.bool)
    count = keep.sum(1)[0].double()
    positive = s.diagonal()
    loss, objective, tau_grad, new = 0, 0, 0, []
    rho = {"isogclr": INDIVIDUAL["rho"], "fastclip": RHO}.get(kind, 0.0)
    for sims, (log_u, tau, average) in zip([s, s.T], state):
        own = tau[ids][:, None]
        logits = (sims / own).masked_fill(~keep, -INF)
        log_g = (logits.logsumexp(1) - count.log()).detach()
        old = log_u[ids]
        u = torch.where(old.isnan(), log_g, log_mix(gamma, old.nan_to_num(0.0), log_g))
        p = (logits - count.log() - u[:, None]).exp().detach()
        loss = loss + (-positive + (p * sims).sum(1)).mean() / 2
        objective = objective + (-positive + tau[ids] * (u + rho)).mean() / 2
        grad = (u + rho - (p * sims / own).sum(1)).detach()
        tau_grad = tau_grad + grad.mean() / 2
        v = (1 - INDIVIDUAL["beta"]) * average[ids] + INDIVIDUAL["beta"] * grad.clamp(
            -INDIVIDUAL["clip"], INDIVIDUAL["clip"]
        )
        moved = (tau[ids] - INDIVIDUAL["rate"] * v).clamp(*INDIVIDUAL["range"])
        changed = [log_u.index_copy(0, ids, u), tau, average]
        if kind == "isogclr":
            changed[1:] = [tau.index_copy(0, ids, moved), average.index_copy(0, ids, v)]
        new.append(changed)
    return loss, objective, tau_grad, new


def run(kind, images, texts, ids, config):
    tau = config["tau"]
    fresh = lambda: [torch.full((N,), value, dtype=torch.float64) for value in (float("nan"), tau, 0.0)]
    state = [fresh(), fresh()]
    names = ["loss", "grad_image", "grad_text"]
    steps = {}
    add = lambda key, value: steps.setdefault(key, []).append(torch.as_tensor(value).detach())
    for t in range(T):
        a, b = images[t].double().requires_grad_(), texts[t].double().requires_grad_()
        s = normalize(a, dim=1) @ normalize(b, dim=1).T
        parameters = {}
        if kind in ("clip", "siglip"):
            loss, parameters = (clip if kind == "clip" else siglip)(s, tau)
        else:
            loss, objective, tau_grad, state = two_way(kind, s, state, ids[t], config["gamma"])
            add("objective", objective)
            for side, (log_u, own, _) in zip(["image", "text"], state):
                add(f"log_u_{side}", log_u.float())
                add(f"tau_{side}", own.float())
            if kind == "fastclip":
                add("parameter_tau", tau_grad)
        grads = torch.autograd.grad(loss, [a, b, *parameters.values()])
        for name, value in zip(names, [loss, grads[0].float(), grads[1].float()]):
            add(name, value)
        for name, value in zip(parameters, grads[2:]):
            add(f"parameter_{name}", value)
    return {key: torch.stack(values) for key, values in steps.items()}


def main():
    images, texts, ids = inputs()
    tensors = {"images": images, "texts": texts, "ids": ids}
    for kind in KINDS:
        for k, config in enumerate(CONFIGS):
            for key, value in run(kind, images, texts, ids, config).items():
                tensors[f"{kind}.c{k}.{key}"] = value
    save_tensors("pairs.safetensors", tensors)
    save_json(
        "pairs.json",
        {"samples": N, "steps": T, "kinds": KINDS, "configs": CONFIGS, "individual": INDIVIDUAL, "rho": RHO, "bias": BIAS},
    )


if __name__ == "__main__":
    main()
