"""The making of views beside torchvision and albumentations, in turn, each on one core."""

import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ["albumentations", "torchvision v1", "torchvision v2"]
SECONDS = 4


def photographs(given):
    """The folder given, or what is in the .zip given."""
    path = Path(given)
    if path.is_dir():
        return path
    folder = ROOT / "target/bench" / path.stem
    if not folder.exists():
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    return folder


def small(folder):
    """The same, 32 pixels wide and high, as CIFAR-100's train.bin: two labels, then red, green and blue."""
    from PIL import Image

    out = ROOT / "target/bench" / f"{folder.name}-32"
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "train.bin", "wb") as file:
        for path in sorted(folder.rglob("*.*")):
            image = Image.open(path).convert("RGB").resize((32, 32), Image.Resampling.BICUBIC)
            file.write(bytes(2) + b"".join(channel.tobytes() for channel in image.split()))
    return out


def compare(run, given, rounds, threads):
    """`run` starts a program and reads its JSON. Views per second on one core, and CPU time of one."""
    folder = photographs(given)
    results = {}
    print("| pipeline | program | views/s on one core | CPU ms of a view | ratio to the fastest peer, lowest to highest round |")
    print("|---|---|---|---|---|")
    for name, data, flags in [("ImageNet", folder, []), ("CIFAR", small(folder), ["--small"])]:
        ours = [ROOT / "target/release/sogclr", "bench", "data", data, "--json", "--seconds", SECONDS]
        theirs = {peer: [sys.executable, ROOT / "bench/data_views.py", peer, data, "--seconds", SECONDS] for peer in PEERS}
        programs = {"sogclr": ours + ["--threads", threads]} | {peer: words + flags for peer, words in theirs.items()}
        runs = {program: [] for program in programs}
        for _ in range(rounds):
            for program, words in programs.items():
                runs[program].append(run(words))
        middle = lambda program, figure: statistics.median(r[figure] for r in runs[program])
        best = max(PEERS, key=lambda peer: middle(peer, "views_per_s_core"))
        ratios = sorted(a["views_per_s_core"] / b["views_per_s_core"] for a, b in zip(runs["sogclr"], runs[best]))
        for program in programs:
            speed, cpu = middle(program, "views_per_s_core"), middle(program, "cpu_ms_core")
            ratio = ""
            if program == "sogclr":
                peer = middle(best, "views_per_s_core")
                ratio = f"**{speed / peer:.2f}** ({ratios[0]:.2f}–{ratios[-1]:.2f}) of {best}"
            print(f"| {name} | {program} | {speed:.0f} | {cpu:.3f} | {ratio} |", flush=True)
        shares = {part: statistics.median(r["shares"][part] for r in runs["sogclr"]) for part in runs["sogclr"][0]["shares"]}
        every = statistics.median(r["views_per_s"] for r in runs["sogclr"])
        parts = ", ".join(f"{part} {100 * share:.0f} %" for part, share in shares.items())
        results[name] = {"runs": runs, "shares": shares, "views_per_s": every}
        results[name]["words"] = f"{name}: {every:.0f} views/s on {threads} threads; on one core {parts}"
    print()
    for result in results.values():
        print(result["words"])
    return results
