"""Loads an exported encoder into torchvision, or both encoders of a run with texts into open_clip, with strict=True.

    target/reference-venv/bin/python reference/check_export.py RUN...

Without `[text]`: runs of resnet18 to resnet152 with width 1 only; the CIFAR stem is put in where the run has it.
With `[text]`: the model that the run's open_clip.json describes.
"""

import json
import sys
import tomllib

import open_clip
import torch
import torchvision
from safetensors.torch import load_file

def resnet(encoder):
    model = getattr(torchvision.models, encoder["name"])()
    model.fc = torch.nn.Identity()
    if encoder["stem"] == "cifar":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = torch.nn.Identity()
    return model


def clip(run):
    with open(f"{run}/open_clip.json") as file:
        return open_clip.model.CLIP(**json.load(file), quick_gelu=True)


for run in sys.argv[1:]:
    with open(f"{run}/config.toml", "rb") as file:
        config = tomllib.load(file)
    tensors = load_file(f"{run}/encoder.safetensors")
    model = clip(run) if "text" in config else resnet(config["encoder"])
    print(run, model.load_state_dict(tensors, strict=True))
    with open(f"{run}/summary.json") as file:
        print("  program says:", json.load(file)["train"]["load_with"])
