"""This run's image and text encoder in PyTorch, the text encoder open_clip's, and images prepared as `sogclr eval` prepares
them. Needs torch,NEEDS safetensors, pillow and open_clip_torch.

    from load import encoder, preprocess, tokenize
    model = encoder()
    image = model.encode_image(preprocess(PIL.Image.open("photo.jpg"))[None], normalize=True)
    text = model.encode_text(tokenize(["a photo of a dog"]), normalize=True)
"""

from pathlib import Path

import numpy
import open_clip
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import nn

SETTINGS


TRUNK


class Visual(nn.Module):
    """The encoder and its projection to the embedding that texts share, under open_clip's names."""

    def __init__(self):
        super().__init__()
        self.trunk = trunk()
        self.head = nn.ModuleDict({"proj": nn.Linear(FEATURES, SHARED, bias=False)})

    def forward(self, x):
        return self.head["proj"](self.trunk(x))


def encoder():
    # The smallest image tower that open_clip builds, in whose place comes ours.
    smallest = {"layers": 1, "width": 64, "patch_size": 32, "image_size": 32}
    model = open_clip.model.CLIP(SHARED, smallest, TEXT, quick_gelu=True)
    model.visual = Visual()
    model.load_state_dict(load_file(Path(__file__).with_name("encoder.safetensors")), strict=True)
    return model.eval()


def tokenize(texts):
    return open_clip.tokenize(texts, context_length=CONTEXT)
