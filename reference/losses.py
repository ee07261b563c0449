"""losses.safetensors, losses.json: every loss step by step, multi-crop SogCLR, and losses with keys and a queue."""

import math

import torch
from torch.nn.functional import normalize

from golden import save_json, save_tensors

N, B, D, T = 10, 4, 6, 12
CONFIGS = [
    {"tau": 0.1, "gamma": 0.9, "epsilon": 0.0},
    {"tau": 0.5, "gamma": 0.3, "epsilon": 0.0},
    {"tau": 0.07, "gamma": 0.6, "epsilon": 1e-3},  # epsilon: algorithm1 only
    {"tau": 0.01, "gamma": 0.5, "epsilon": 0.0},
]
SOGCLR = ["default", "algorithm1", "released", "tf"]
LABELS = torch.tensor([0, 1, 0, 2, 1, 2, 2, 0, 1, 0])  # of the N samples
SIGMA, ALPHA, PRIOR = 0.5, 64.0, 0.1
# iSogCLR: rho, eta, beta, clip, range
INDIVIDUAL = {"rho": 0.3, "rate": 0.05, "beta": 0.7, "clip": 3.0, "range": [0.005, 0.7]}
INF = float("inf")


def inputs():
    g = torch.Generator().manual_seed(20220222)
    scale = 0.3 + 3 * torch.rand(T, B, 1, generator=g)
    z_a = torch.randn(T, B, D, generator=g)
    z_b = z_a + 0.7 * torch.randn(T, B, D, generator=g)
    z_a, z_b = z_a * scale, z_b * scale.flip(1)
    # {0..3}, {2, 3, 4, 5}: seen and unseen meet in one batch from step 1 on.
    ids = [torch.tensor([2, 0, 3, 1]), torch.tensor([4, 3, 2, 5]), torch.tensor([6, 1, 7, 4])]
    ids += [torch.randperm(N, generator=g)[:B] for _ in range(T - len(ids))]
    return z_a, z_b, torch.stack(ids)


def log_mix(gamma, log_u, log_g):
    """ln((1-γ)u + γĝ)"""
    gamma = torch.tensor(gamma, dtype=torch.float64)
    return torch.logaddexp(torch.log1p(-gamma) + log_u, gamma.log() + log_g)


def two_views(z_a, z_b):
    """s [2B, 2B], s⁺ [2B], negatives [2B, 2B]"""
    z = normalize(torch.cat([z_a, z_b]), dim=1)
    s = z @ z.T
    sample = torch.arange(B).repeat(2)
    return s, s[torch.arange(2 * B), torch.arange(2 * B).roll(B)], sample[:, None] != sample[None, :]


def log_estimate(s, negatives, tau):
    """ln ĝ_a = LSE_neg(s/τ) - ln|neg|   [anchors]"""
    return (s / tau).masked_fill(~negatives, -INF).logsumexp(1) - negatives.double().sum(1).log()


def surrogate(s, positive, negatives, log_weight_u, tau):
    """mean_a [ -s⁺_a + Σ_neg stopgrad(exp(s/τ)/(|neg| U_a)) s ]"""
    log_w = s / tau - negatives.double().sum(1, keepdim=True).log() - log_weight_u[:, None]
    w = log_w.masked_fill(~negatives, -INF).exp().detach()
    return (-positive + (w * s).sum(1)).mean()


def sogclr(kind, s, positive, negatives, log_u, ids, tau, gamma, epsilon):
    """-> loss, objective, ln of the stored u [B]; log_u [N] holds NaN for an unseen sample."""
    log_g = log_estimate(s, negatives, tau).detach()  # [2B]
    log_g_mean = torch.logaddexp(log_g[:B], log_g[B:]) - math.log(2)
    old, unseen = log_u[ids], log_u[ids].isnan()

    if kind == "algorithm1":
        # U = ε₀ + u_{t-1};  unseen: u_{t-1} := g_i
        old = torch.where(unseen, log_g_mean, old)
        weight = torch.logaddexp(old, torch.tensor(epsilon, dtype=torch.float64).log()).repeat(2)
        new = log_mix(gamma, old, log_g_mean)
    else:
        if kind == "default":
            # unseen: U_a = ĝ_a
            mixed = log_mix(gamma, old.nan_to_num(0.0).repeat(2), log_g)
            weight = torch.where(unseen.repeat(2), log_g, mixed)
        elif kind == "released":
            # u_0 = 0;  Σ_batch u = 0: γ := 1
            weight = log_mix(1.0 if unseen.all() else gamma, old.nan_to_num(-INF).repeat(2), log_g)
        else:
            # tf: u_0 = 0, no first-visit rule
            weight = log_mix(gamma, old.nan_to_num(-INF).repeat(2), log_g)
        new = torch.logaddexp(weight[:B], weight[B:])  # sum of the views
        if kind != "tf":
            new = new - math.log(2)  # mean of the views

    loss = surrogate(s, positive, negatives, weight, tau)
    return loss, (-positive[:B] + tau * new).mean(), new


def simclr(s, positive, negatives, tau):
    self = torch.eye(2 * B, dtype=torch.bool)
    loss = ((s / tau).masked_fill(self, -INF).logsumexp(1) - positive / tau).mean()
    return loss, (-positive + tau * log_estimate(s, negatives, tau)).mean()


def log_negatives(s, negatives, tau):
    return (s / tau).masked_fill(~negatives, -INF).logsumexp(1)


def dcl(s, positive, negatives, tau):
    return (log_negatives(s, negatives, tau) - positive / tau).mean()


def dclw(s, positive, negatives, tau):
    """w_i = 2 - B softmax_i(s⁺/σ) over the samples of a view"""
    weight = 2 - B * (positive.view(2, B) / SIGMA).softmax(1).view(-1)
    return (log_negatives(s, negatives, tau) - weight * positive / tau).mean()


def flatnce(s, positive, negatives, tau):
    """exp(v - sg(v)) - 1, plus the cross-entropy without gradient"""
    v = log_negatives(s, negatives, tau) - positive / tau
    return (torch.expm1(v - v.detach()) + torch.nn.functional.softplus(v).detach()).mean()


def simo(s, positive, negatives, tau):
    """-s⁺/τ + ln(e^{s⁺/τ} + α/K Σ e^{s⁻/τ})"""
    margin = math.log(ALPHA / (2 * B - 2))
    return (torch.logaddexp(positive / tau, log_negatives(s, negatives, tau) + margin) - positive / tau).mean()


def debiased(s, positive, negatives, tau):
    """-ln e⁺/(e⁺ + max((Σe⁻ - τ₊ N e⁺)/(1 - τ₊), N e^{-1/τ}))"""
    count, e = 2 * B - 2, (positive / tau).exp()
    total = ((s / tau).exp() * negatives).sum(1)
    estimate = ((total - PRIOR * count * e) / (1 - PRIOR)).clamp(min=count * math.exp(-1 / tau))
    return ((e + estimate) / e).log().mean()


def classes(s, ids):
    """mean similarity to the positives, negatives, by label"""
    label = LABELS[ids].repeat(2)
    same = label[:, None] == label[None, :]
    positives = same & ~torch.eye(2 * B, dtype=torch.bool)
    return (s * positives).sum(1) / positives.sum(1), ~same


def supcon(s, ids, tau):
    positive, _ = classes(s, ids)
    self = torch.eye(2 * B, dtype=torch.bool)
    return ((s / tau).masked_fill(self, -INF).logsumexp(1) - positive / tau).mean()


def isogclr(s, positive, negatives, log_u, tau, tau_grad, ids, gamma):
    """-> loss, objective, ln u, τ, v of the batch's samples; SogCLR's default with τ_i"""
    own = tau[ids].repeat(2)[:, None]
    log_g = log_estimate(s, negatives, own).detach()
    old = log_u[ids]
    weight = torch.where(old.isnan().repeat(2), log_g, log_mix(gamma, old.nan_to_num(0.0).repeat(2), log_g))
    new = torch.logaddexp(weight[:B], weight[B:]) - math.log(2)
    loss = surrogate(s, positive, negatives, weight, own)
    p = (s / own - negatives.double().sum(1, keepdim=True).log() - weight[:, None]).masked_fill(~negatives, -INF).exp()
    grad = (weight + INDIVIDUAL["rho"] - (p * s / own).sum(1)).detach().view(2, B).mean(0)
    grad = grad.clamp(-INDIVIDUAL["clip"], INDIVIDUAL["clip"])
    v = (1 - INDIVIDUAL["beta"]) * tau_grad[ids] + INDIVIDUAL["beta"] * grad
    moved = (tau[ids] - INDIVIDUAL["rate"] * v).clamp(*INDIVIDUAL["range"])
    objective = (-positive[:B] + tau[ids] * (new + INDIVIDUAL["rho"])).mean()
    return loss, objective, new, moved, v


def run(kind, z_a, z_b, ids, config):
    tau, gamma = config["tau"], config["gamma"]
    epsilon = config["epsilon"] if kind == "algorithm1" else 0.0
    log_u = torch.full((N,), float("nan"), dtype=torch.float64)
    own_tau, tau_grad = torch.full((N,), tau, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    steps = {key: [] for key in ["loss", "objective", "grad_a", "grad_b", "log_u", "tau"]}
    plain = {"dcl": dcl, "dclw": dclw, "flatnce": flatnce, "simo": simo, "debiased": debiased}
    for t in range(T):
        a, b = z_a[t].double().requires_grad_(), z_b[t].double().requires_grad_()
        s, positive, negatives = two_views(a, b)
        if kind in SOGCLR:
            loss, objective, new = sogclr(kind, s, positive, negatives, log_u, ids[t], tau, gamma, epsilon)
            log_u = log_u.index_copy(0, ids[t], new)
            steps["log_u"].append(log_u.float())
            steps["objective"].append(objective)
        elif kind == "simclr":
            loss, objective = simclr(s, positive, negatives, tau)
            steps["objective"].append(objective)
        elif kind == "sogclr_labels":
            positive, negatives = classes(s, ids[t])
            loss, _, new = sogclr("default", s, positive, negatives, log_u, ids[t], tau, gamma, 0.0)
            log_u = log_u.index_copy(0, ids[t], new)
            steps["log_u"].append(log_u.float())
        elif kind == "isogclr":
            out = isogclr(s, positive, negatives, log_u, own_tau, tau_grad, ids[t], gamma)
            loss, objective, new, moved, v = out
            log_u, own_tau = log_u.index_copy(0, ids[t], new), own_tau.index_copy(0, ids[t], moved)
            tau_grad = tau_grad.index_copy(0, ids[t], v)
            steps["log_u"].append(log_u.float())
            steps["tau"].append(own_tau.float())
            steps["objective"].append(objective)
        elif kind == "supcon":
            loss = supcon(s, ids[t], tau)
        else:
            loss = plain[kind](s, positive, negatives, tau)
        grad_a, grad_b = torch.autograd.grad(loss, [a, b])
        steps["loss"].append(loss)
        steps["grad_a"].append(grad_a.float())
        steps["grad_b"].append(grad_b.float())
    return {key: torch.stack(values) for key, values in steps.items() if values}


def multicrop():
    """Anchors: all crops. Positives: the other large crops of the image. Negatives: all crops of other images."""
    views, large, batch, tau, gamma = 4, 2, 3, 0.1, 0.9
    g = torch.Generator().manual_seed(7)
    x = torch.randn(1, batch, D, generator=g) + 0.7 * torch.randn(views, batch, D, generator=g)
    x = x * (0.5 + torch.rand(views, batch, 1, generator=g))
    ids = torch.tensor([5, 1, 8])
    log_u = torch.full((N,), float("nan"), dtype=torch.float64)
    log_u[torch.tensor([0, 1, 5])] = torch.tensor([0.4, 1.7, 2.9], dtype=torch.float32).double()

    leaf = x.double().requires_grad_()
    z = normalize(leaf.reshape(views * batch, D), dim=1)  # row v*B + i
    s = z @ z.T
    image = torch.arange(batch).repeat(views)
    same = image[:, None] == image[None, :]
    is_large = torch.arange(views * batch) < large * batch
    positives = same & is_large[None, :] & ~torch.eye(views * batch, dtype=torch.bool)
    positive = (s * positives).sum(1) / positives.sum(1)

    log_g = log_estimate(s, ~same, tau).detach()
    old = log_u[ids].repeat(views)
    weight = torch.where(old.isnan(), log_g, log_mix(gamma, old.nan_to_num(0.0), log_g))
    new = weight.reshape(views, batch).logsumexp(0) - math.log(views)
    loss = surrogate(s, positive, ~same, weight, tau)
    (grad,) = torch.autograd.grad(loss, leaf)
    tensors = {
        "views": x,
        "ids": ids,
        "log_u_before": log_u.float(),
        "loss": loss.reshape(1),
        "grad": grad.float(),
        "log_u": log_u.index_copy(0, ids, new).float(),
    }
    return tensors, {"views": views, "large": large, "batch": batch, "tau": tau, "gamma": gamma}


QUEUE = 7
KEYED = ["moco", "simo_keys", "infomin", "nnclr"]


def keyed_inputs(z_a, z_b):
    """keys, predictions and jigsaw embeddings [T, B, D], and the first queue [K, D]"""
    g = torch.Generator().manual_seed(31)
    near = lambda z: z + 0.8 * torch.randn(T, B, D, generator=g)
    return {
        "k_b": near(z_b),
        "p_a": near(z_a),
        "p_b": near(z_b),
        "z_jigsaw": near(z_a),
        "queue": normalize(torch.randn(QUEUE, D, generator=g), dim=1),
    }


def contrast_keys(q, k, negatives, tau, margin):
    """mean_i -ln e⁺/(e⁺ + margin Σe⁻);  negatives [B, K] of similarities, -inf where there is none"""
    positive = (q * k).sum(1) / tau
    return (torch.logaddexp(positive, (negatives / tau).logsumexp(1) + math.log(margin)) - positive).mean()


def keyed(kind, z_a, z_b, more, tau):
    """Each step's loss and gradients; the queue's oldest rows are replaced after it."""
    queue, next_row = more["queue"].double(), 0
    leaves = {"moco": ["z_a"], "simo_keys": ["z_a"], "infomin": ["z_a", "z_jigsaw"], "nnclr": ["p_a", "p_b"]}[kind]
    steps = {key: [] for key in ["loss"] + [f"grad_{leaf}" for leaf in leaves]}
    for t in range(T):
        raw = {"z_a": z_a[t], "z_b": z_b[t]} | {name: value[t] for name, value in more.items() if name != "queue"}
        raw = {name: value.double().requires_grad_() for name, value in raw.items()}
        unit = {name: normalize(value, dim=1) for name, value in raw.items()}
        k = unit["k_b"].detach()
        if kind == "simo_keys":
            others = (unit["z_a"] @ k.T).masked_fill(torch.eye(B, dtype=torch.bool), -INF)
            loss = contrast_keys(unit["z_a"], k, others, tau, ALPHA / (B - 1))
        elif kind == "nnclr":
            loss = 0
            for view, prediction in [("z_a", "p_b"), ("z_b", "p_a")]:
                nearest = queue[(unit[view].detach() @ queue.T).argmax(1)]
                logits = nearest @ unit[prediction].T / tau
                loss = loss + 0.5 * torch.nn.functional.cross_entropy(logits, torch.arange(B))
        else:
            queries = ["z_a"] if kind == "moco" else ["z_a", "z_jigsaw"]
            loss = sum(contrast_keys(unit[q], k, unit[q] @ queue.T, tau, 1.0) for q in queries) / len(queries)
        for leaf, grad in zip(leaves, torch.autograd.grad(loss, [raw[leaf] for leaf in leaves])):
            steps[f"grad_{leaf}"].append(grad.float())
        steps["loss"].append(loss.detach())
        for row in unit["z_a"].detach() if kind == "nnclr" else k:
            queue = queue.index_copy(0, torch.tensor([next_row]), row[None])
            next_row = (next_row + 1) % QUEUE
    return {key: torch.stack(values) for key, values in steps.items()} | {"queue": queue.float()}


def main():
    z_a, z_b, ids = inputs()
    tensors = {"z_a": z_a, "z_b": z_b, "ids": ids}
    kinds = SOGCLR + ["simclr", "dcl", "dclw", "flatnce", "simo", "debiased", "supcon", "sogclr_labels", "isogclr"]
    for kind in kinds:
        for k, config in enumerate(CONFIGS):
            for key, value in run(kind, z_a, z_b, ids, config).items():
                tensors[f"{kind}.c{k}.{key}"] = value
    crops, crop_config = multicrop()
    tensors |= {f"multicrop.{key}": value for key, value in crops.items()}
    more = keyed_inputs(z_a, z_b)
    tensors |= {f"keyed.{name}": value for name, value in more.items()}
    for kind in KEYED:
        for k, config in enumerate(CONFIGS):
            for key, value in keyed(kind, z_a, z_b, more, config["tau"]).items():
                tensors[f"{kind}.c{k}.{key}"] = value
    save_tensors("losses.safetensors", tensors)
    save_json(
        "losses.json",
        {
            "samples": N,
            "batch": B,
            "dim": D,
            "steps": T,
            "kinds": kinds,
            "keyed": KEYED,
            "configs": CONFIGS,
            "labels": LABELS.tolist(),
            "sigma": SIGMA,
            "alpha": ALPHA,
            "prior": PRIOR,
            "individual": INDIVIDUAL,
            "multicrop": crop_config,
        },
    )


if __name__ == "__main__":
    main()
