"""Loads the exported encoder of runs as their load.py says, and compares its features with those of `sogclr embed`.

    target/reference-venv/bin/python reference/check_export.py SOGCLR IMAGES RUN...

SOGCLR is the program, IMAGES a folder of pictures. A ResNet that torchvision has is also loaded into torchvision's.
"""

import importlib.util
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file


def load_script(run):
    spec = importlib.util.spec_from_file_location("load", run / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def into_torchvision(run, encoder):
    model = getattr(torchvision.models, encoder["name"])()
    model.fc = torch.nn.Identity()
    if encoder["stem"] == "cifar":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = torch.nn.Identity()
    print("  torchvision:", model.load_state_dict(load_file(run / "encoder.safetensors"), strict=True))


program, images = sys.argv[1], Path(sys.argv[2])
for run in map(Path, sys.argv[3:]):
    config = tomllib.loads((run / "config.toml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "features"
        subprocess.run([program, "embed", run, images, "--out", out], check=True, capture_output=True)
        ours = load_file(out)["features"]
        names = [line.split("\t")[1] for line in Path(f"{out}.tsv").read_text().splitlines()]
    script = load_script(run)
    model = script.encoder()
    encode = model.encode_image if "text" in config else model
    if hasattr(getattr(model, "visual", None), "trunk"):
        encode = model.visual.trunk  # features, before the projection to what texts share
    with torch.no_grad():
        batch = torch.stack([script.preprocess(Image.open(images / name)) for name in names])
        theirs = encode(batch)
    error = ((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max().item()
    print(f"{run}: {len(names)} images, largest relative difference {error:.2e}")
    assert error < 0.02, "the decoders or resizers of the two programs differ, nothing else may"
    encoder = config["encoder"]
    if encoder.get("width") == 1.0 and hasattr(torchvision.models, encoder["name"]):
        into_torchvision(run, encoder)
