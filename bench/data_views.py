"""Views of SimCLR on one core by another program, as JSON: torchvision's transforms (v2 on tensors, v1 on Pillow's images) or
albumentations. Each photograph is read and decoded once for two views; CIFAR's images are in memory."""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
for threads in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"]:
    os.environ[threads] = "1"

import numpy  # noqa: E402, which reads them

IMAGENET = {"size": 224, "scale": (0.08, 1.0), "strength": 1.0, "blur": 0.5, "kernel": 23}
CIFAR = {"size": 32, "scale": (0.2, 1.0), "strength": 0.5, "blur": 0.0, "kernel": 3}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def jitter(strength):
    return 0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength


def torchvision_v1(p):
    import torch
    from PIL import Image
    from torchvision import transforms as T

    torch.set_num_threads(1)
    steps = [
        T.RandomResizedCrop(p["size"], scale=p["scale"], interpolation=T.InterpolationMode.BICUBIC),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(*jitter(p["strength"]))], p=0.8),
        T.RandomGrayscale(p=0.2),
    ]
    if p["blur"]:
        steps.append(T.RandomApply([T.GaussianBlur(p["kernel"], (0.1, 2.0))], p=p["blur"]))
    view = T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)])
    return (lambda path: Image.open(path).convert("RGB")), Image.fromarray, view


def torchvision_v2(p):
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2 as T

    torch.set_num_threads(1)
    steps = [
        T.RandomResizedCrop(p["size"], scale=p["scale"], interpolation=T.InterpolationMode.BICUBIC, antialias=True),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(*jitter(p["strength"]))], p=0.8),
        T.RandomGrayscale(p=0.2),
    ]
    if p["blur"]:
        steps.append(T.RandomApply([T.GaussianBlur(p["kernel"], (0.1, 2.0))], p=p["blur"]))
    view = T.Compose([*steps, T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)])
    of_array = lambda array: torch.from_numpy(array).permute(2, 0, 1).contiguous()
    return (lambda path: decode_image(str(path), ImageReadMode.RGB)), of_array, view


def albumentations(p):
    import albumentations as A
    import cv2

    cv2.setNumThreads(1)
    steps = [
        A.RandomResizedCrop((p["size"], p["size"]), scale=p["scale"], interpolation=cv2.INTER_CUBIC),
        A.HorizontalFlip(p=0.5),
        A.ColorJitter(*jitter(p["strength"]), p=0.8),
        A.ToGray(p=0.2),
    ]
    if p["blur"]:
        steps.append(A.GaussianBlur(blur_limit=(p["kernel"], p["kernel"]), sigma_limit=(0.1, 2.0), p=p["blur"]))
    view = A.Compose([*steps, A.Normalize(MEAN, STD)])
    read = lambda path: cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
    return read, (lambda array: array), (lambda image: view(image=image)["image"])


PROGRAMS = {"albumentations": albumentations, "torchvision v1": torchvision_v1, "torchvision v2": torchvision_v2}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="CIFAR's pipeline, on the images of CIFAR-100's train.bin")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    read, of_array, view = PROGRAMS[args.program](CIFAR if args.small else IMAGENET)
    if args.small:
        rows = numpy.fromfile(args.folder / "train.bin", numpy.uint8).reshape(-1, 2 + 3 * 32 * 32)[:, 2:]
        images = [of_array(row.reshape(3, 32, 32).transpose(1, 2, 0).copy()) for row in rows]
        read = lambda image: image
    else:
        images = sorted(args.folder.rglob("*.*"))

    def one_pass():
        for place in images:
            image = read(place)
            view(image), view(image)
        return 2 * len(images)

    one_pass()
    start, cpu, views = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < args.seconds:
        views += one_pass()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"views_per_s_core": views / seconds, "cpu_ms_core": 1e3 * cpu / views}))


if __name__ == "__main__":
    main()
