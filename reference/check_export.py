"""Loads an exported encoder into torchvision with strict=True.

    target/reference-venv/bin/python reference/check_export.py RUN...

Runs of resnet18 to resnet152 with width 1 only; the CIFAR stem is put in where the run has it.
"""

import json
import sys
import tomllib

import torch
import torchvision
from safetensors.torch import load_file

for run in sys.argv[1:]:
    with open(f"{run}/config.toml", "rb") as file:
        encoder = tomllib.load(file)["encoder"]
    model = getattr(torchvision.models, encoder["name"])()
    model.fc = torch.nn.Identity()
    if encoder["stem"] == "cifar":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = torch.nn.Identity()
    print(run, model.load_state_dict(load_file(f"{run}/encoder.safetensors"), strict=True))
    with open(f"{run}/summary.json") as file:
        print("  program says:", json.load(file)["train"]["load_with"])
