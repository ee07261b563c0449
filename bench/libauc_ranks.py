"""The gradient of released distributed SogCLR losses in PyTorch, and of ours, against the exact one on the same embeddings.

`libauc.losses.contrastive.GCLoss` with `distributed=True`, as DistributedDataParallel runs it on K gloo processes: a slice of
the batch on each rank, gradients averaged over the ranks. `unimodal` is `GCLoss_v1`, of two views, `bimodal` is `GCLoss_v2`,
of image–text pairs.

- The SogCLR program (github.com/Optimization-AI/SogCLR, `sogclr/builder.py` at d4663fc): the loss that became `GCLoss_v1`,
  gathered by `all_gather_layer`, whose `backward` returns what a rank's own anchors say of its rows. Here it is LibAUC 1.3.1
  with that `backward`.
- LibAUC 1.3.1 (and 1.3.0), `GCLoss_v1`: the same, but `backward` ends in a bare `return`, and nothing comes back.
- LibAUC 2.0.1, the newest, `GCLoss_v1`: gathers by `torch.distributed.nn.all_gather`, which sums the gradient over the ranks.
- LibAUC 2.0.1, `GCLoss_v2`: gathers likewise, but subtracts `torch.diagonal(logits)` of a rank's [B/K, B] similarities. Those
  are the matched pairs on rank 0 only; every other rank draws its images to the texts of rank 0.

The exact gradient is autograd's in float64 on the whole batch. Each sample is visited for the first time (u = ĝ), where these
objectives are ours times a constant, 2 for two views and B − 1 for pairs: their error at K = 1 shows that. Ours comes from
`sogclr loss` on the whole batch; a rank computes its rows of that (crates/sogclr/tests/ranks.rs).

Usage: target/bench-venv/bin/python bench/libauc_ranks.py, after bench/compare has made that environment."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import multiprocessing
from torch.nn.functional import normalize

ROOT = Path(__file__).resolve().parent.parent
# what is measured, LibAUC's release, mode
PEERS = [
    ("SogCLR program, two views", "1.3.1", "unimodal"),
    ("LibAUC 1.3.1, two views", "1.3.1", "unimodal"),
    ("LibAUC 2.0.1, two views", "2.0.1", "unimodal"),
    ("LibAUC 2.0.1, pairs", "2.0.1", "bimodal"),
]
RANKS = [1, 2, 4]
B, DIM, CLASSES, TAU = 64, 128, 8, 0.1


def embeddings():
    """Both sides of B samples in a few classes, [2, B, DIM]: with negatives that are hard, and pairs that are not equal."""
    torch.manual_seed(0)
    samples = torch.randn(CLASSES, DIM)[torch.arange(B) % CLASSES] + torch.randn(B, DIM)
    return samples + 0.5 * torch.randn(2, B, DIM)


def exact(mode, h):
    """∂L/∂h in float64: L = 1/2B Σ_a [−s_a⁺ + Σ_b p_ab s_ab], p the softmax of s/τ over the negatives, held constant."""
    h = h.double().requires_grad_()
    z = normalize(h, dim=2)
    if mode == "unimodal":
        s, sample = z.flatten(0, 1) @ z.flatten(0, 1).T, torch.arange(B).repeat(2)
    else:
        s, sample = torch.cat([z[0] @ z[1].T, z[1] @ z[0].T]), torch.arange(B)
    negatives = torch.arange(B).repeat(2)[:, None] != sample
    p = (s / TAU).masked_fill(~negatives, -torch.inf).softmax(1).detach()
    (-(z[0] * z[1]).sum() * 2 + (p * s).sum()).div(2 * B).backward()
    return h.grad


def folder(release):
    """Where `release` is installed, alone: LibAUC wants a dozen packages that this file of it does not need."""
    target = ROOT / "target" / f"libauc-{release}"
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, f"libauc=={release}"]
        subprocess.run(pip, check=True)
    return target


def gc_loss(name, release, mode, **ranks):
    """LibAUC's loss of both sides' embeddings and the ids; `ranks` are `rank` and `world_size` if there are several."""
    spec = importlib.util.spec_from_file_location("contrastive", folder(release) / "libauc/losses/contrastive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if name.startswith("SogCLR"):
        module.all_gather_layer.backward = staticmethod(lambda _, *grads: grads[dist.get_rank()])
    if mode == "unimodal":
        return module.GCLoss(mode, N=B, tau=TAU, distributed=bool(ranks))
    loss = module.GCLoss(mode, N=B, tau=TAU, distributed=bool(ranks), **ranks)
    # It takes unit rows, and returns (loss, temperatures).
    return lambda a, b, ids: loss(normalize(a, dim=1), normalize(b, dim=1), ids)[0]


def gradients(rank, count, file):
    """On each rank; rank 0 writes the average over the ranks for every peer, [2, B, DIM]."""
    warnings.simplefilter("ignore")
    sys.stdout = open(os.devnull, "w")
    torch.Tensor.cuda = lambda tensor: tensor  # 1.3.1 moves u to a GPU without asking
    ranks = {"rank": rank, "world_size": count} if count > 1 else {}
    if ranks:
        dist.init_process_group("gloo", init_method=f"file://{file}.store", **ranks)
    rows = torch.arange(B).chunk(count)[rank]
    results = {}
    for name, release, mode in PEERS:
        h = embeddings().requires_grad_()
        gc_loss(name, release, mode, **ranks)(h[0, rows], h[1, rows], rows).backward()
        if ranks:
            dist.all_reduce(h.grad)
        results[name] = h.grad / count
    if rank == 0:
        save_file(results, file)


def ours(mode, scratch):
    given, out = scratch / "in.safetensors", scratch / "out.safetensors"
    names = ["z_a", "z_b" if mode == "unimodal" else "z_text"]
    save_file(dict(zip(names, embeddings().unbind())), given)
    program = [ROOT / "target/release/sogclr", "loss", given, "--temperature", str(TAU), "--out", out]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    grads = load_file(out)
    return torch.stack([grads[name.replace("z_", "grad_")] for name in names])


def error(gradient, truth):
    """‖g − g*‖/‖g*‖; in brackets, unless it is rounding, the same after the best scaling of g: what no learning rate cures."""
    g, truth = gradient.double().flatten(), truth.flatten()
    best = g * (g @ truth) / (g @ g)
    wrong, direction = [((x - truth).norm() / truth.norm()).item() for x in (g, best)]
    return f"{wrong:.0e}" if wrong < 1e-4 else f"{wrong:.0%} ({direction:.0%})"


def main():
    for _, release, _ in PEERS:
        folder(release)
    truth = {mode: exact(mode, embeddings()) for mode in ["unimodal", "bimodal"]}
    scale = {"unimodal": 2, "bimodal": B - 1}
    with tempfile.TemporaryDirectory() as scratch:
        found = []
        for count in RANKS:
            file = f"{scratch}/{count}"
            multiprocessing.spawn(gradients, (count, file), nprocs=count)
            found.append(load_file(file))
        rows = [(name, [error(each[name] / scale[mode], truth[mode]) for each in found]) for name, _, mode in PEERS]
        for name, mode in [("sogclr, two views", "unimodal"), ("sogclr, pairs", "bimodal")]:
            rows.append((name, [error(ours(mode, Path(scratch)), truth[mode])] + ["its rows"] * (len(RANKS) - 1)))
    print(f"Error of the gradient and, in brackets, of its direction; {B} samples, embeddings of {DIM} values:\n")
    print("| loss | " + " | ".join(f"K = {count}" for count in RANKS) + " |")
    print("|---" * (1 + len(RANKS)) + "|")
    for name, errors in rows:
        print(f"| {name} | " + " | ".join(errors) + " |")


if __name__ == "__main__":
    main()
