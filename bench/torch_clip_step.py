"""One training step of image–text pairs in PyTorch, as `sogclr bench step --encoder clip-s` runs it: both encoders of
open_clip, two-way SogCLR loss, backward, AdamW. Prints one JSON line; a view is a pair."""

import torch

from torch_step import GAMMA, SAMPLES, arguments, report
from clip import CLIP_S, build  # reference/clip.py: torch_step puts reference/ on the path

TAU = 0.07
START, END = 49406, 49407
ENCODERS = {
    "clip-s": CLIP_S,
    "clip-xs": CLIP_S | {"embed_dim": 256, "layers": [1, 1, 1, 1], "width": 24, "text_heads": 4, "text_layers": 4},
}


def texts(batch, context):
    """[B, 77]: START, 8 to 24 tokens, END, zeros. open_clip computes all 77 positions; sogclr stops at the longest
    text of the batch, which changes neither features nor gradients, since the attention is causal."""
    ids = torch.zeros(batch, context, dtype=torch.long)
    for row in ids:
        length = int(torch.randint(8, 25, ()))
        row[0], row[length + 1] = START, END
        row[1 : length + 1] = torch.randint(1, START, (length,))
    return ids


def sogclr_loss(images, texts, ids, state):
    """1/2B Σ_i [−2 s_ii + Σ_{j≠i} p^I_ij s_ij + Σ_{j≠i} p^T_ij s_ji], p^I_ij = exp(s_ij/τ) / (B−1)u^I_i held constant;
    state: u^I and u^T, [N] each, NaN for an unseen sample."""
    s = images @ texts.T
    count = len(ids)
    loss = -2 * s.diagonal().sum()
    with torch.no_grad():
        e = (s / TAU).exp().fill_diagonal_(0)
    for sims, e, u in zip([s, s.T], [e, e.T], state):
        g = e.sum(1) / (count - 1)
        old = u[ids]
        u[ids] = torch.where(old.isnan(), g, (1 - GAMMA) * old + GAMMA * g)
        loss = loss + (e / ((count - 1) * u[ids])[:, None] * sims).sum()
    return loss / (2 * count)


def main():
    args = arguments(ENCODERS)
    torch.use_deterministic_algorithms(False)  # reference/golden.py turns them on
    config = ENCODERS[args.encoder] | {"image_size": args.image_size}
    model = build(config).train().to(memory_format=args.layout)
    images = torch.randn(args.batch, 3, args.image_size, args.image_size).to(memory_format=args.layout)
    tokens = texts(args.batch, config["context"])
    ids = torch.arange(args.batch)
    state = [torch.full((SAMPLES,), torch.nan) for _ in range(2)]
    # fused: the fastest of PyTorch's three implementations here
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with args.autocast():
            embedded = model.encode_image(images, normalize=True), model.encode_text(tokens, normalize=True)
        sogclr_loss(*[h.float() for h in embedded], ids, state).backward()
        optimizer.step()

    report(step, args.steps, args.batch)


if __name__ == "__main__":
    main()
