"""This run's image and text encoder in open_clip, and images prepared as `sogclr eval` prepares them. Needs torch,
safetensors, pillow and open_clip_torch.

    from load import encoder, preprocess, tokenize
    model = encoder()
    image = model.encode_image(preprocess(PIL.Image.open("photo.jpg"))[None], normalize=True)
    text = model.encode_text(tokenize(["a photo of a dog"]), normalize=True)
"""

import json
from pathlib import Path

import numpy
import open_clip
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file

SETTINGS
HERE = Path(__file__).parent


def encoder():
    model = open_clip.model.CLIP(**json.loads((HERE / "open_clip.json").read_text()), quick_gelu=True)
    model.load_state_dict(load_file(HERE / "encoder.safetensors"), strict=True)
    return model.eval()


def tokenize(texts):
    return open_clip.tokenize(texts, context_length=CONTEXT)
