"""An epoch of SogCLR on CIFAR's binary batches in PyTorch, with torchvision's augmentation in the workers of a DataLoader, as
`sogclr pretrain` runs it. Prints one JSON line."""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from torch_step import ENCODERS, SAMPLES, head, sogclr_loss

STATISTICS = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


class Views(Dataset):
    """Two views of each image, by SimCLR's pipeline for CIFAR."""

    def __init__(self, folder, count):
        files = sorted(Path(folder).glob("data_batch_*.bin"))
        rows = numpy.concatenate([numpy.fromfile(file, numpy.uint8).reshape(-1, 3073)[:, 1:] for file in files])[:count]
        self.images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy()
        crop = T.RandomResizedCrop(32, scale=(0.2, 1.0), interpolation=T.InterpolationMode.BICUBIC)
        jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
        steps = [crop, T.RandomHorizontalFlip(), jitter, T.RandomGrayscale(p=0.2), T.ToTensor(), T.Normalize(*STATISTICS)]
        self.view = T.Compose(steps)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = Image.fromarray(self.images[index])
        return self.view(image), self.view(image), index


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    build, features = ENCODERS["resnet20"]
    model = nn.Sequential(build(), head(features)).train()
    u = torch.full((SAMPLES,), torch.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    views = Views(args.folder, args.images)
    loader = DataLoader(views, args.batch, shuffle=True, drop_last=True, num_workers=args.workers)
    start, seen = None, 0
    for step, (first, second, ids) in enumerate(loader):
        if step == 3:
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        sogclr_loss(model(torch.cat([first, second])), ids, u).backward()
        optimizer.step()
        seen += len(ids) if step >= 3 else 0
    print(json.dumps({"images_per_s": seen / (time.perf_counter() - start)}))


if __name__ == "__main__":
    sys.exit(main())
