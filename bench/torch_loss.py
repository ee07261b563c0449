"""A loss in PyTorch, as `sogclr bench loss` runs it: from raw embeddings to their gradients. Prints one JSON line."""

import argparse
import json
import resource
import statistics
import time

import torch
from torch.nn.functional import cross_entropy, normalize

from torch_step import SAMPLES, TAU, sogclr_loss


def ntxent(h, batch):
    """NT-Xent as SimCLR's programs write it: the whole matrix, the diagonal masked, cross-entropy."""
    z = normalize(h, dim=1)
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return cross_entropy(logits, torch.arange(2 * batch).roll(batch))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=["sogclr", "simclr"], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    h = torch.randn(2 * args.batch, args.dim, requires_grad=True)
    ids, u = torch.arange(args.batch), torch.full((max(SAMPLES, args.batch),), torch.nan)
    times = []
    for index in range(2 + args.repeats):
        if index == 2:
            cpu = time.process_time()
        start = time.perf_counter()
        loss = sogclr_loss(h, ids, u) if args.method == "sogclr" else ntxent(h, args.batch)
        h.grad = None
        loss.backward()
        if index >= 2:
            times.append(time.perf_counter() - start)
    figures = {
        "ms_median": 1e3 * statistics.median(times),
        "cpu_ms": 1e3 * (time.process_time() - cpu) / args.repeats,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
