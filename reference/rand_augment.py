"""rand_augment.safetensors, rand_augment.json: RandAugment's operators on float images in [0, 1]."""

import math

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from golden import hashed, save_json, save_tensors

# operation, values
OPERATIONS = [
    ("autocontrast", [None]),
    ("equalise", [None]),
    ("invert", [None]),
    ("posterise", [0, 1, 3, 4, 8]),
    ("solarise", [0.0, 0.3, 100 / 255, 1.0]),
    ("solarise_add", [0.0, 40 / 255, 110 / 255]),
    ("sharpness", [0.1, 0.7, 1.9]),
    ("rotate", [30.0, -17.5, 8.0]),
    ("shear_x", [0.3, -0.13]),
    ("shear_y", [0.3, -0.13]),
    ("translate_x", [0.45, -0.2]),
    ("translate_y", [0.45, -0.2]),
]


def image(name, channels, height, width, off_grid, bright=0):
    """[0.1, 0.9] on the 8-bit grid, or up to 0.4 levels off it, with `bright` pixels of 250/255   [C, H, W]"""
    levels = torch.round(255 * (0.5 + 0.4 * hashed(name, channels, height, width) ** 3))
    levels[0, 0, 0] = 100  # the threshold of a case
    levels.flatten(1)[:, 1 : 1 + bright] = 250
    return ((levels + off_grid * 0.4 * hashed(name + ".off", channels, height, width)) / 255).float()


INPUTS = {
    "rgb": image("rgb", 3, 11, 14, off_grid=False),
    "grey": image("grey", 1, 14, 11, off_grid=True),
    # 3*255 - 1 and 4*255 - 1 pixels below the highest level: one short of the next step
    "large_rgb": image("large_rgb", 3, 31, 34, off_grid=False, bright=290),
    "large_grey": image("large_grey", 1, 40, 29, off_grid=True, bright=141),
    "constant": torch.full((1, 4, 3), 77 / 255),
    "thin": image("thin", 3, 2, 7, off_grid=False),
    "pixel": image("pixel", 3, 1, 1, off_grid=False),
}


def on_bytes(operator, x, *values):
    """Through the 8-bit grid."""
    return operator(x.mul(255).round().to(torch.uint8), *values).double() / 255


def affine(x, translate=(0.0, 0.0), shear=(0.0, 0.0)):
    """in = M out, from the top left corner; shear as tangents."""
    degrees = [math.degrees(math.atan(s)) for s in shear]
    translate = [-t for t in translate]
    return F.affine(x, 0.0, translate, 1.0, degrees, InterpolationMode.BILINEAR, fill=0.5, center=[0.0, 0.0])


def apply(operation, x, value):
    height, width = x.shape[-2:]
    match operation:
        case "autocontrast":
            return F.autocontrast(x)
        case "equalise":
            return on_bytes(F.equalize, x)
        case "invert":
            return F.invert(x)
        case "posterise":
            return on_bytes(F.posterize, x, value)
        case "solarise":
            return F.solarize(x.float(), value)
        case "solarise_add":
            return torch.where(x.float() < 128 / 255, (x + value).clamp(max=1), x)
        case "sharpness":
            return F.adjust_sharpness(x, value)
        case "rotate":
            return F.rotate(x, value, InterpolationMode.BILINEAR, fill=0.5)
        case "shear_x":
            return affine(x, shear=(value, 0.0))
        case "shear_y":
            return affine(x, shear=(0.0, value))
        case "translate_x":
            return affine(x, translate=(value * width, 0.0))
        case "translate_y":
            return affine(x, translate=(0.0, value * height))


def main():
    tensors = {f"input.{name}": x for name, x in INPUTS.items()}
    record = []
    for operation, values in OPERATIONS:
        # Equalising needs 255 pixels below the highest level.
        large = operation == "equalise"
        for name, x in INPUTS.items():
            if name.startswith("large") and not large:
                continue
            for value in values:
                case = f"{operation}.{name}" + ("" if value is None else f".{value:.3g}")
                tensors[case] = apply(operation, x.double(), value).float()
                record.append({"name": case, "input": name, "operation": operation, "value": value})
    save_tensors("rand_augment.safetensors", tensors)
    save_json("rand_augment.json", record)


if __name__ == "__main__":
    main()
