"""One SogCLR training step in PyTorch, as `sogclr bench step` runs it: two views in one forward, two-layer head, loss,
backward, SGD with momentum. Prints one JSON line."""

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import timm
import torch
from torch import nn
from torchvision.models import resnet50
from torchvision.models.resnet import BasicBlock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))
from resnet import WidthResNet, backbone, cifar_resnet18  # noqa: E402

TAU, GAMMA, SAMPLES = 0.1, 0.9, 50_000
ENCODERS = {
    "resnet20": (lambda: WidthResNet(BasicBlock, [3, 3, 3], 16, cifar=True), 64),
    "resnet18": (cifar_resnet18, 512),
    "resnet50": (backbone(resnet50), 2048),
    "vit-small": (lambda: timm.create_model("vit_small_patch16_224", num_classes=0), 384),
}


def head(features):
    hidden = min(max(features, 128), 2048)
    layers = [nn.Linear(features, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(hidden, 128, bias=False), nn.BatchNorm1d(128))


def sogclr_loss(h, ids, u):
    """Algorithm 1 in log space; u [N] holds ln u, NaN for an unseen sample."""
    z = nn.functional.normalize(h, dim=1)
    count = len(ids)
    s = z @ z.T
    sample = torch.arange(count).repeat(2)
    negatives = sample[:, None] != sample[None, :]
    positive = s[torch.arange(2 * count), torch.arange(2 * count).roll(count)]
    with torch.no_grad():
        log_n = torch.tensor(2.0 * count - 2).log()
        log_g = (s / TAU).masked_fill(~negatives, -torch.inf).logsumexp(1) - log_n
        log_g = torch.logsumexp(log_g.view(2, count), 0) - torch.tensor(2.0).log()
        old = u[ids]
        gamma = torch.tensor(GAMMA)
        new = torch.where(old.isnan(), log_g, torch.logaddexp((1 - gamma).log() + old, gamma.log() + log_g))
        u[ids] = new
        weight = (s / TAU - log_n - new.repeat(2)[:, None]).masked_fill(~negatives, -torch.inf).exp()
    return (-positive + (weight * s).sum(1)).mean()


def arguments(encoders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", choices=encoders, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    args.autocast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16")
    args.layout = torch.channels_last if args.channels_last else torch.contiguous_format
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    return args


def report(step, steps, views):
    """Three steps that are not counted, then `steps` of `views` each, as one JSON line."""
    for _ in range(3):
        step()
    wall, cpu = [], time.process_time()
    for _ in range(steps):
        start = time.perf_counter()
        step()
        wall.append(time.perf_counter() - start)
    median = statistics.median(wall)
    figures = {
        "views_per_s": views / median,
        "step_ms_median": 1e3 * median,
        "cpu_s_per_step": (time.process_time() - cpu) / steps,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


def main():
    args = arguments(ENCODERS)
    build, features = ENCODERS[args.encoder]
    model = nn.Sequential(build(), head(features)).train().to(memory_format=args.layout)
    x = torch.randn(2 * args.batch, 3, args.image_size, args.image_size).to(memory_format=args.layout)
    ids = torch.arange(args.batch)
    u = torch.full((SAMPLES,), torch.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with args.autocast():
            h = model(x)
        sogclr_loss(h.float(), ids, u).backward()
        optimizer.step()

    report(step, args.steps, 2 * args.batch)


if __name__ == "__main__":
    main()
