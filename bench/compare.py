"""Runs each step, of two views and of image–text pairs, in PyTorch (eager, channels_last) and in sogclr in turn, then
each loss alone, and prints medians and their ratio. On request, a step on several ranks beside DistributedDataParallel."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path

import data

ROOT = Path(__file__).resolve().parent.parent
# encoder, batch (half the views), image size, timed steps per run
STEPS = [("resnet20", 64, 32, 12), ("resnet18", 32, 32, 5), ("resnet50", 4, 224, 4), ("vit-small", 4, 224, 5)]
# encoder, batch (the pairs), image size, timed steps per run
PAIRS = [("clip-xs", 32, 64, 10), ("clip-xs", 128, 64, 5), ("clip-s", 16, 224, 4)]
# method, batch
LOSSES = [(method, batch) for method in ["sogclr", "simclr"] for batch in [32, 64, 128, 256, 512, 1024, 2048, 4096]]
# as a step; --batch is the global one
RANKS_STEP = ("resnet18", 32, 32, 4)
RANKS = [1, 2]
# Neither side binds its ranks to cores: on two, binding made sogclr 3 % slower and DDP 1 % faster.
LAUNCH = {
    "mpirun": ["mpirun", "--bind-to", "none", "-n"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node"],
}
DIM = 128
MODES = ["sogclr", "eager", "channels_last"]
FIGURES = ["views_per_s", "step_ms_median", "cpu_s_per_step", "peak_rss_mb"]


def command(script, mode, encoder, batch, size, steps, threads, precision="f32"):
    work = ["--encoder", encoder, "--batch", batch, "--image-size", size, "--steps", steps]
    work += ["--threads", threads, "--precision", precision]
    if mode == "sogclr":
        program = [ROOT / "target/release/sogclr", "bench", "step", "--json"]
    else:
        program = [sys.executable, ROOT / "bench" / script] + ["--channels-last"] * (mode == "channels_last")
    return program + work


def run(words):
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    out = subprocess.run([str(w) for w in words], check=True, text=True, env=os.environ | root, **quiet)
    return json.loads(out.stdout)


def alternate(work, script, unit, label, args):
    """Each step in every mode in turn, `--rounds` times, against `script`; the faster layout of PyTorch is the peer."""
    print(f"| step | mode | {unit}/s | ms | CPU s | peak MB | ratio of {unit}/s, lowest to highest round | memory |")
    print("|---|---|---|---|---|---|---|---|")
    results = {}
    for encoder, batch, size, steps in work:
        runs = {mode: [] for mode in MODES}
        for _ in range(args.rounds):
            for mode in MODES:
                runs[mode].append(run(command(script, mode, encoder, batch, size, steps, args.threads, args.precision)))
        median = {mode: {f: statistics.median(run[f] for run in runs[mode]) for f in FIGURES} for mode in MODES}
        peer = max(MODES[1:], key=lambda mode: median[mode]["views_per_s"])
        speeds = sorted(a["views_per_s"] / b["views_per_s"] for a, b in zip(runs["sogclr"], runs[peer]))
        ratio = {f: median["sogclr"][f] / median[peer][f] for f in FIGURES}
        name = f"{encoder}, {label.format(batch)} of {size}²"
        results[name] = {"runs": runs, "median": median, "peer": peer, "ratio": ratio}
        for mode in MODES:
            m = median[mode]
            speed, memory = "", ""
            if mode == "sogclr":
                speed = f"**{ratio['views_per_s']:.2f}** ({speeds[0]:.2f}–{speeds[-1]:.2f}) of {peer}"
                memory = f"{ratio['peak_rss_mb']:.2f}"
            cells = [name, mode, f"{m['views_per_s']:.1f}", f"{m['step_ms_median']:.0f}", f"{m['cpu_s_per_step']:.2f}"]
            print("| " + " | ".join(cells + [f"{m['peak_rss_mb']:.0f}", speed, memory]) + " |", flush=True)
    return results


def ranks(rounds):
    """One step on 1 and on K ranks of one thread each, in every mode in turn; efficiency is speed on K ÷ K·speed on 1."""
    encoder, batch, size, steps = RANKS_STEP
    print("| step | mode | ranks | views/s | ms | peak MB a rank | efficiency, lowest to highest round | ratio of views/s |")
    print("|---|---|---|---|---|---|---|---|")
    runs = {(mode, count): [] for count in RANKS for mode in MODES}
    for _ in range(rounds):
        for mode, count in runs:
            launch = LAUNCH["mpirun" if mode == "sogclr" else "torchrun"] + [count]
            step = command("torch_ddp.py", mode, encoder, batch, size, steps, threads=1)
            runs[mode, count].append(run(launch + step))
    speeds = {key: [run["views_per_s"] for run in of] for key, of in runs.items()}
    median = {key: {f: statistics.median(run[f] for run in of) for f in FIGURES} for key, of in runs.items()}
    middle = {key: of["views_per_s"] for key, of in median.items()}
    efficiency, ratio = {}, {}
    for mode, count in runs:
        peer = max(MODES[1:], key=lambda other: middle[other, count])
        each = sorted(b / (count * a) for a, b in zip(speeds[mode, RANKS[0]], speeds[mode, count]))
        efficiency[mode, count] = middle[mode, count] / (count * middle[mode, RANKS[0]])
        m, percent, speed = median[mode, count], "", ""
        if count > 1:
            percent = f"{efficiency[mode, count]:.0%} ({each[0]:.0%}–{each[-1]:.0%})"
        if mode == "sogclr":
            each = sorted(a / b for a, b in zip(speeds[mode, count], speeds[peer, count]))
            ratio[count] = middle[mode, count] / middle[peer, count]
            speed = f"**{ratio[count]:.2f}** ({each[0]:.2f}–{each[-1]:.2f}) of {peer}"
        cells = [f"{encoder}, 2x{batch} views of {size}²", mode, str(count), f"{m['views_per_s']:.1f}"]
        cells += [f"{m['step_ms_median']:.0f}", f"{m['peak_rss_mb']:.0f}", percent, speed]
        print("| " + " | ".join(cells) + " |", flush=True)
    named = lambda figures: {f"{mode} {count}": value for (mode, count), value in figures.items()}
    return {"runs": named(runs), "median": named(median), "efficiency": named(efficiency), "ratio": ratio}


def losses(rounds, threads):
    """One process for each figure, since a peak of memory belongs to a process; sogclr and PyTorch in turn."""
    print(f"\nLosses alone, embeddings of {DIM} values:\n")
    print("| loss | batch | sogclr ms | PyTorch ms | times as fast, lowest to highest round | CPU time | peak MB | PyTorch MB |")
    print("|---|---|---|---|---|---|---|---|")
    results = {}
    for method, batch in LOSSES:
        repeats = max(3, min(50, 20_000 // batch))
        work = ["--method", method, "--batch", batch, "--dim", DIM, "--repeats", repeats, "--threads", threads]
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(run([ROOT / "target/release/sogclr", "bench", "loss", "--json"] + work))
            theirs.append(run([sys.executable, ROOT / "bench/torch_loss.py"] + work))
        results[f"{method} {batch}"] = {"sogclr": ours, "torch": theirs}
        middle = lambda runs, figure: statistics.median(run[figure] for run in runs)
        ms, peer = middle(ours, "ms_median"), middle(theirs, "ms_median")
        ratios = sorted(b["ms_median"] / a["ms_median"] for a, b in zip(ours, theirs))
        cpu = middle(theirs, "cpu_ms") / middle(ours, "cpu_ms")
        memory = [f"{middle(runs, 'peak_rss_mb'):.0f}" for runs in (ours, theirs)]
        speed = f"**{peer / ms:.2f}** ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        cells = [method, str(batch), f"{ms:.2f}", f"{peer:.2f}", speed, f"{cpu:.2f}"] + memory
        print("| " + " | ".join(cells) + " |", flush=True)
    return results


def cpu_name():
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="bf16: PyTorch by autocast")
    parser.add_argument("--only", choices=[step[0] for step in STEPS] + ["pairs", "losses", "ranks", "data"])
    parser.add_argument("--photos", help="folder or .zip of photographs for --only data")
    args = parser.parse_args()

    results = {"date": date.today().isoformat(), "cpu": cpu_name(), "threads": args.threads, "rounds": args.rounds}
    results["precision"] = args.precision
    threads = "one thread a rank" if args.only == "ranks" else f"{args.threads} threads"
    print(f"{results['date']}, {results['cpu']}, {threads}, {args.precision}, medians of {args.rounds} alternate runs\n")
    steps = [step for step in STEPS if args.only in (None, step[0])]
    if args.precision == "bf16":
        steps = [step for step in steps if not step[0].startswith("vit")]  # f32 alone
    if steps:
        results |= alternate(steps, "torch_step.py", "views", "2x{} views", args)
    if args.only in (None, "pairs"):
        print("\nImage–text pairs; PyTorch computes all 77 tokens of a text, sogclr up to the longest of the batch:\n")
        results |= alternate(PAIRS, "torch_clip_step.py", "pairs", "{} pairs", args)
    if args.only == "data":
        results["data"] = data.compare(run, args.photos, args.rounds, args.threads)
    if args.only == "losses" or (args.only is None and args.precision == "f32"):
        results["losses"] = losses(args.rounds, args.threads)
    if args.only == "ranks":
        results["ranks"] = ranks(args.rounds)
    folder = ROOT / "target/bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
