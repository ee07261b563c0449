

def preprocess(pixels):
    """A tensor [CHANNELS, SIZE, SIZE] of values from 0 to 1, normalised; cut and resize it yourself."""
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
