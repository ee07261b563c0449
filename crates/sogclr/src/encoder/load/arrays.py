

def preprocess(pixels):
    """An array [height, width] or [height, width, channels] of uint8, uint16 or floats from 0 to 1: the shortest side to
    RESIZE, the centre of SIZE by SIZE pixels, normalised."""
    pixels = numpy.asarray(pixels)
    most = {"uint8": 255, "uint16": 65535}.get(pixels.dtype.name, 1)
    pixels = torch.from_numpy(pixels.astype(numpy.float32) / most)
    pixels = (pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1)
    height, width = (RESIZE * side // min(pixels.shape[1:]) for side in pixels.shape[1:])
    if (height, width) != pixels.shape[1:]:
        pixels = torch.nn.functional.interpolate(pixels[None], (height, width), mode="bicubic", antialias=True)[0].clamp(0, 1)
    top, left = round((height - SIZE) / 2), round((width - SIZE) / 2)
    pixels = pixels[:, top : top + SIZE, left : left + SIZE]
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
