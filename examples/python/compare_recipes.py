#!/usr/bin/env python3
"""Generates videos with BF16 attention and with each recipe, from the same noise, and says how far they are apart.

    compare_recipes.py                                                  # a small random model, on the CPU
    compare_recipes.py --model Wan2.2-T2V --prompt "A cat." --videos out  # a local checkpoint; videos and a contact sheet in out/

The README beside it has more.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from fidelity_table import means
from records import Record

from vcattn.grouping import POLICIES

# Little is imported here, since the processes that compute FLIP import it too.


def parse(arguments: list[str] | None) -> argparse.Namespace:
    def numbers(text: str) -> tuple[int, ...]:
        size = tuple(map(int, text.split(",")))
        if len(size) != 3 or min(size) < 1:
            raise argparse.ArgumentTypeError(f"must be FRAMES,HEIGHT,WIDTH; got {text}")
        return size

    def count(text: str) -> int:
        if int(text) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
        return int(text)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="DIR", help="checkpoint in diffusers format; default: a small random model")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated; default: those of the model")
    parser.add_argument("--pairs", type=count, metavar="N", help="seeds 0 to N-1 with the prompts in turn; default: each prompt once")
    parser.add_argument("--recipes", nargs="+", default=[], help="default: every recipe that the device serves, or that is emulated there")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES, help="for --policy-recipes; default: all")
    parser.add_argument("--policy-recipes", nargs="*", default=["vc8", "vc8s"], help="default: %(default)s")
    parser.add_argument("--noise-floor", default="auto", metavar="BACKEND", help="second BF16 backend of diffusers, or none")
    parser.add_argument("--size", type=numbers, metavar="F,H,W", help="frames, height, width in pixels; default: by model")
    parser.add_argument("--steps", type=count, help="denoising steps; default: 50, 4 for the random model")
    parser.add_argument("--guidance", type=float, help="CFG; default: 5, for a checkpoint that of its pipeline")
    parser.add_argument("--batch", type=count, default=1, metavar="N", help="pairs that are generated together")
    parser.add_argument("--lpips", action="store_true", help="also LPIPS; needs its AlexNet weights in torch's cache")
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON of all rows; rows that it has are not computed again")
    parser.add_argument("--commit", help="of vcattn, for the record")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS", help="start no video after that")
    parser.add_argument("--videos", type=Path, metavar="DIR", help="write videos and contact sheets there")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> Record:
    options = parse(arguments)
    from comparison import run

    record = run(options)
    if record.rows:
        print(means(record.rows, extra=["seconds"]))
    return record


if __name__ == "__main__":
    main()
