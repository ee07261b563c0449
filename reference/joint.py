"""joint.safetensors, joint.json: losses that contrast nothing (BYOL, SimSiam, Barlow Twins, VICReg) on raw embeddings,
with their gradients."""

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, mse_loss, relu

from golden import save_json, save_tensors

B, D, T = 5, 4, 6
CONFIGS = {
    "byol": [{}],
    "simsiam": [{}],
    "barlow-twins": [{"lambda": 0.0051}, {"lambda": 0.5}],
    "vicreg": [
        {"invariance": 25.0, "variance": 25.0, "covariance": 1.0},
        {"invariance": 10.0, "variance": 5.0, "covariance": 2.0},
    ],
}
# the inputs that a loss sends its gradient to, and the gradients' names
LEAVES = {
    "byol": {"p_a": "grad_p_a", "p_b": "grad_p_b"},
    "simsiam": {"p_a": "grad_p_a", "p_b": "grad_p_b"},
    "barlow-twins": {"z_a": "grad_a", "z_b": "grad_b"},
    "vicreg": {"z_a": "grad_a", "z_b": "grad_b"},
}


def byol(p_a, p_b, k_a, k_b):
    """mean_i (2 - 2cos(p_a, k_b)) + (2 - 2cos(p_b, k_a))"""
    return (4 - 2 * cosine_similarity(p_a, k_b.detach()) - 2 * cosine_similarity(p_b, k_a.detach())).mean()


def simsiam(z_a, z_b, p_a, p_b):
    """mean_i -(cos(p_a, sg z_b) + cos(p_b, sg z_a))/2"""
    return -(cosine_similarity(p_a, z_b.detach()) + cosine_similarity(p_b, z_a.detach())).mean() / 2


def off_diagonal(c):
    return c[~torch.eye(len(c), dtype=torch.bool)]


def barlow_twins(z_a, z_b, config):
    """Σ_i (1 - C_ii)² + λ Σ_{i≠j} C_ij²,  C = BN(z_a)ᵀ BN(z_b)/B   [D, D]"""
    norm = nn.BatchNorm1d(z_a.shape[1], affine=False).to(z_a.dtype)
    c = norm(z_a).T @ norm(z_b) / len(z_a)
    return (1 - c.diagonal()).square().sum() + config["lambda"] * off_diagonal(c).square().sum()


def vicreg(z_a, z_b, config):
    """λ mse + μ/2 Σ_views mean_j relu(1 - √(var_j + 1e-4)) + ν Σ_views Σ_{i≠j} cov_ij²/D;  var, cov: over B - 1"""
    views = [z_a, z_b]
    variance = sum(relu(1 - (z.var(0) + 1e-4).sqrt()).mean() for z in views) / 2
    covariance = sum(off_diagonal(z.T.cov()).square().sum() / z.shape[1] for z in views)
    return (
        config["invariance"] * mse_loss(z_a, z_b)
        + config["variance"] * variance
        + config["covariance"] * covariance
    )


def evaluate(kind, sets, config):
    if kind == "byol":
        return byol(sets["p_a"], sets["p_b"], sets["k_a"], sets["k_b"])
    if kind == "simsiam":
        return simsiam(sets["z_a"], sets["z_b"], sets["p_a"], sets["p_b"])
    return {"barlow-twins": barlow_twins, "vicreg": vicreg}[kind](sets["z_a"], sets["z_b"], config)


def inputs():
    """[T, B, D] each, float32 numbers: dimensions with spread below and above 1, means away from 0. Step 4 is so small
    that the ε of batch norm and of the standard deviation count."""
    g = torch.Generator().manual_seed(20210304)
    randn = lambda: torch.randn(T, B, D, generator=g)
    scale = torch.tensor([1.0, 1.5, 0.6, 1.0, 0.02, 2.0])[:, None, None] * torch.tensor([0.3, 1.0, 1.6, 0.7])
    shift = torch.randn(T, 1, D, generator=g)
    z_a = randn() + shift
    z_b = z_a + 0.5 * randn()
    near = lambda z: z + 0.7 * randn()
    sets = {"z_a": z_a, "z_b": z_b, "p_a": near(z_a), "p_b": near(z_b), "k_a": near(z_a), "k_b": near(z_b)}
    return {name: (scale * value).double() for name, value in sets.items()}


def check(sets):
    """VICReg's hinge is on in some dimensions and off in others, and rounding moves none across it."""
    std = torch.stack([(sets[name].var(1) + 1e-4).sqrt() for name in ["z_a", "z_b"]])  # [2, T, D]
    assert (std - 1).abs().min() > 1e-2
    assert ((std < 1).any(2) & (std > 1).any(2)).any(0).sum() >= 3


def run(kind, sets, config):
    steps = {key: [] for key in ["loss", *LEAVES[kind].values()]}
    for t in range(T):
        raw = {name: value[t].clone().requires_grad_() for name, value in sets.items()}
        loss = evaluate(kind, raw, config)
        grads = torch.autograd.grad(loss, list(raw.values()), allow_unused=True)
        found = {name: grad for name, grad in zip(raw, grads) if grad is not None}
        assert list(found) == list(LEAVES[kind])
        steps["loss"].append(loss.detach())
        for name, grad in found.items():
            steps[LEAVES[kind][name]].append(grad)
    return {key: torch.stack(values) for key, values in steps.items()}


def main():
    sets = inputs()
    check(sets)
    tensors = dict(sets)
    for kind, configs in CONFIGS.items():
        for c, config in enumerate(configs):
            tensors |= {f"{kind}.c{c}.{key}": value for key, value in run(kind, sets, config).items()}
    save_tensors("joint.safetensors", tensors)
    save_json("joint.json", {"batch": B, "dim": D, "steps": T, "configs": CONFIGS})


if __name__ == "__main__":
    main()
