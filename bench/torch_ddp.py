"""The step of torch_step.py on K ranks: DistributedDataParallel over gloo, started by `torchrun --nproc-per-node K`. --batch
counts the global batch; rank 0 prints one JSON line.

Embeddings are gathered with gradient, so that the average DDP takes over the ranks is the gradient of the global loss. Batch
norm stays local, since SyncBatchNorm does not run on CPU tensors: DDP is spared its messages, and trains another network
than one process would. Buffers are not synchronised in the forward pass and gradients are views of the buckets, which both
make DDP faster."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel

from torch_step import ENCODERS, SAMPLES, arguments, head, report, sogclr_loss


def gather(h):
    """[2b, D] of each rank as [2B, D]: the first view of all samples, then the second."""
    return torch.stack(all_gather(h.view(2, -1, h.shape[1])), dim=1).flatten(0, 2)


def main():
    args = arguments(ENCODERS)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        sys.stdout = open(os.devnull, "w")
    build, features = ENCODERS[args.encoder]
    model = nn.Sequential(build(), head(features)).train().to(memory_format=args.layout)
    model = DistributedDataParallel(model, forward_sync_buffers=False, gradient_as_bucket_view=True)
    torch.manual_seed(rank)
    views = 2 * args.batch // ranks
    x = torch.randn(views, 3, args.image_size, args.image_size).to(memory_format=args.layout)
    ids = torch.arange(args.batch)
    u = torch.full((SAMPLES,), torch.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step():
        optimizer.zero_grad()
        sogclr_loss(gather(model(x)), ids, u).backward()
        optimizer.step()

    report(step, args.steps, 2 * args.batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
