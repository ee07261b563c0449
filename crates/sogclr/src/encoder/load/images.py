"""This run's encoder in PyTorch, and images prepared as `sogclr eval` prepares them. Needs torch,NEEDS safetensors and pillow.

    from load import encoder, preprocess
    features = encoder()(preprocess(PIL.Image.open("photo.jpg"))[None])
"""

from pathlib import Path

import numpy
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import nn

SETTINGS


TRUNK


def encoder():
    model = trunk()
    model.load_state_dict(load_file(Path(__file__).with_name("encoder.safetensors")), strict=True)
    return model.eval()
