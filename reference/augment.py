"""augment.safetensors, augment.json: resampling on 8-bit images, colour and blur on float images in [0, 1]."""

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from golden import hashed, save_json, save_tensors

H, W = 37, 50
BICUBIC = InterpolationMode.BICUBIC

# name, mode, top, left, height, width, output height, output width
CROPS = [
    ("whole_to_16", "RGB", 0, 0, 37, 50, 16, 16),
    ("whole_to_24", "RGB", 0, 0, 37, 50, 24, 24),
    ("whole_to_1", "RGB", 0, 0, 37, 50, 1, 1),
    ("small_to_32", "RGB", 11, 20, 9, 7, 32, 32),
    ("mixed_scale", "RGB", 3, 5, 30, 10, 12, 20),
    ("corner", "RGB", 20, 33, 17, 17, 16, 16),
    ("same_size", "RGB", 8, 9, 16, 16, 16, 16),
    ("one_pixel", "RGB", 36, 49, 1, 1, 4, 4),
    ("whole_to_3x40", "RGB", 0, 0, 37, 50, 3, 40),
    ("grey_whole_to_16", "L", 0, 0, 37, 50, 16, 16),
    ("grey_small_to_32", "L", 11, 20, 9, 7, 32, 32),
]

# name, input, operations
COLOURS = [
    ("brightness_0.3", "rgb", [("brightness", 0.3)]),
    ("brightness_1.7", "rgb", [("brightness", 1.7)]),
    ("contrast_0.3", "rgb", [("contrast", 0.3)]),
    ("contrast_1.7", "rgb", [("contrast", 1.7)]),
    ("saturation_0.2", "rgb", [("saturation", 0.2)]),
    ("saturation_1.8", "rgb", [("saturation", 1.8)]),
    ("hue_-0.2", "rgb", [("hue", -0.2)]),
    ("hue_0.15", "rgb", [("hue", 0.15)]),
    ("greyscale", "rgb", [("greyscale",)]),
    ("blur_3_0.1", "rgb", [("blur", 3, 0.1)]),
    ("blur_5_1.0", "rgb", [("blur", 5, 1.0)]),
    ("blur_7_2.0", "rgb", [("blur", 7, 2.0)]),
    ("flip", "rgb", [("flip",)]),
    ("chain", "rgb", [("brightness", 1.4), ("hue", 0.1), ("contrast", 0.6), ("saturation", 1.5)]),
    ("grey_brightness_0.3", "grey", [("brightness", 0.3)]),
    ("grey_brightness_1.7", "grey", [("brightness", 1.7)]),
    ("grey_contrast_0.3", "grey", [("contrast", 0.3)]),
    ("grey_contrast_1.7", "grey", [("contrast", 1.7)]),
]

OPERATIONS = {
    "brightness": F.adjust_brightness,
    "contrast": F.adjust_contrast,
    "saturation": F.adjust_saturation,
    "hue": F.adjust_hue,
    "greyscale": lambda x: F.rgb_to_grayscale(x, num_output_channels=3),
    "blur": lambda x, kernel, sigma: F.gaussian_blur(x, [kernel, kernel], [sigma, sigma]),
    "flip": F.horizontal_flip,
}


def source():
    """Gradients + noise, with grey, black, white, red and cyan patches   [37, 50, 3] u8"""
    y, x = np.mgrid[0:H, 0:W]
    ramps = np.stack([255 * x / (W - 1), 255 * y / (H - 1), 127.5 + 127.5 * np.sin((x + 2 * y) / 9)], 2)
    image = np.clip(np.round(ramps + 40 * hashed("source", H, W, 3).numpy()), 0, 255).astype(np.uint8)
    patches = [(128, 128, 128), (0, 0, 0), (255, 255, 255), (255, 0, 0), (0, 255, 255)]
    for k, colour in enumerate(patches):
        image[8 + 3 * k : 11 + 3 * k, 12:15] = colour
    return image


def pixels(image):
    """PIL -> [H, W, C] u8"""
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None])


def main():
    image = source()
    rgb = Image.fromarray(image)
    grey = rgb.convert("L")
    float_rgb = torch.from_numpy(image[5:25, 10:34]).permute(2, 0, 1).float() / 255  # [3, 20, 24]
    float_grey = pixels(grey)[5:25, 10:34].permute(2, 0, 1).float() / 255  # [1, 20, 24]
    tensors = {"source": pixels(rgb), "source_grey": pixels(grey), "float.rgb": float_rgb, "float.grey": float_grey}
    record = {"crops": [], "colours": []}

    for name, mode, top, left, height, width, out_height, out_width in CROPS:
        base = rgb if mode == "RGB" else grey
        crop = F.resized_crop(base, top, left, height, width, [out_height, out_width], BICUBIC)
        tensors[f"crop.{name}"] = pixels(crop)
        record["crops"].append(
            {"name": name, "mode": mode, "top": top, "left": left, "height": height, "width": width}
            | {"out_height": out_height, "out_width": out_width}
        )

    for name, base, operations in COLOURS:
        x = float_rgb if base == "rgb" else float_grey
        for op, *values in operations:
            x = OPERATIONS[op](x, *values)
        tensors[f"colour.{name}"] = x
        steps = [
            {"op": op} | dict(zip(["kernel", "sigma"] if op == "blur" else ["factor"], values))
            for op, *values in operations
        ]
        record["colours"].append({"name": name, "input": base, "steps": steps})

    resized = F.resize(rgb, 20, BICUBIC)
    tensors["resize_20"] = pixels(resized)
    tensors["resize_20_centre_16"] = pixels(F.center_crop(resized, [16, 16]))
    record["resize"] = {"shortest": 20, "centre_crop": 16}
    save_tensors("augment.safetensors", tensors)
    save_json("augment.json", record)


if __name__ == "__main__":
    main()
