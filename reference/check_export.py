"""Loads an exported encoder into torchvision, or both encoders of a run with texts into open_clip, with strict=True.

    target/reference-venv/bin/python reference/check_export.py RUN...

Without `[text]`: runs of resnet18 to resnet152 with width 1 only; the CIFAR stem is put in where the run has it.
With `[text]`: clip-s, clip-xs and clip-vit-xs. The head counts leave no trace in the file: they are not checked.
"""

import json
import sys
import tomllib

import open_clip
import torch
import torchvision
from safetensors.torch import load_file

# layers, width at multiplier 1; one layer count: a vision transformer
CLIPS = {"clip-s": ([3, 4, 6, 3], 32), "clip-xs": ([1, 1, 1, 1], 24), "clip-vit-xs": (4, 192)}
GRID = 8  # patches along a side


def resnet(encoder):
    model = getattr(torchvision.models, encoder["name"])()
    model.fc = torch.nn.Identity()
    if encoder["stem"] == "cifar":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = torch.nn.Identity()
    return model


def clip(config, tensors):
    encoder, text, size = config["encoder"], config["text"], config["augment"]["views"][0]["size"]
    layers, full = CLIPS[encoder["name"]]
    is_vit = isinstance(layers, int)
    # from the file, since a multiplier's rounding is the program's; where there is none, the configuration's
    width = tensors["visual.conv1.weight" if is_vit else "visual.conv3.weight"].shape[0]
    if encoder["width"] == 1 and width != full:
        sys.exit(f"{encoder['name']} has width {full}, the file {width}")
    vision = {"layers": layers, "width": width, "head_width": 64, "image_size": size}
    if is_vit:
        vision["patch_size"] = size // GRID
    texts = {"context_length": text["context"], "vocab_size": text["vocabulary"], "width": text["width"],
             "heads": text["heads"], "layers": text["layers"]}
    return open_clip.model.CLIP(text["output"], vision, texts, quick_gelu=True)


for run in sys.argv[1:]:
    with open(f"{run}/config.toml", "rb") as file:
        config = tomllib.load(file)
    tensors = load_file(f"{run}/encoder.safetensors")
    model = clip(config, tensors) if "text" in config else resnet(config["encoder"])
    print(run, model.load_state_dict(tensors, strict=True))
    with open(f"{run}/summary.json") as file:
        print("  program says:", json.load(file)["train"]["load_with"])
