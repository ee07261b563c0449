"""An epoch of CIFAR-10 with augmentation: ResNet-20, batch 64, here and in PyTorch with each number of workers, in turn.
Usage: bench/epoch [--images N] [--rounds R] [FOLDER of CIFAR-10's binary batches]"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORES = len(os.sched_getaffinity(0))


def ours(folder, images):
    out = Path(tempfile.mkdtemp()) / "run"
    words = ["pretrain", folder, "--limit", images, "--encoder", "resnet20", "--batch", 64, "--epochs", 1]
    words += ["--threads", CORES, "--out", out]
    subprocess.run([ROOT / "target/release/sogclr", *map(str, words)], check=True, capture_output=True)
    speed = json.loads((out / "summary.json").read_text())["train"]["images_per_s"]
    shutil.rmtree(out.parent)
    return speed


def theirs(folder, images, workers):
    words = ["bench/torch_epoch.py", folder, "--workers", workers, "--threads", CORES, "--images", images]
    line = subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True, cwd=ROOT, text=True).stdout
    return json.loads(line)["images_per_s"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=ROOT / "data/cifar-10-batches-bin")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    folder = Path(args.folder).resolve()
    programs = {"sogclr": lambda: ours(folder, args.images)}
    for workers in range(CORES + 2):
        programs[f"PyTorch, {workers} workers"] = lambda workers=workers: theirs(folder, args.images, workers)
    speeds = {name: [] for name in programs}
    for _ in range(args.rounds):
        for name, run in programs.items():
            speeds[name].append(run())
    middle = {name: statistics.median(runs) for name, runs in speeds.items()}
    best = max((name for name in middle if name != "sogclr"), key=middle.get)
    print(f"| program, {CORES} cores | images/s | epoch of 50,000 |\n|---|---|---|")
    for name, speed in middle.items():
        ratio = f" | **{speed / middle[best]:.2f}** times {best}" if name == "sogclr" else " |"
        print(f"| {name} | {speed:.0f} | {50_000 / speed:.0f} s{ratio}")


if __name__ == "__main__":
    main()
