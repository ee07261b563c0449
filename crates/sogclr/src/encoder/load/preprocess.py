

def preprocess(image):
    """The shortest side to RESIZE, the centre of SIZE by SIZE pixels, normalised."""
    image = (ImageOps.exif_transpose(image) if UPRIGHT else image).convert("RGB")
    width, height = (RESIZE * side // min(image.size) for side in image.size)
    left, top = round((width - SIZE) / 2), round((height - SIZE) / 2)
    image = image.resize((width, height), Image.BICUBIC).crop((left, top, left + SIZE, top + SIZE))
    pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1) / 255
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
