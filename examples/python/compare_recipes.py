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

import numpy as np
from fidelity_table import means
from records import Record

import vcattn
from vcattn.grouping import POLICIES

# Little is imported here, since the processes that compute FLIP import it too.

POLICY_RECIPES = ("vc8", "vc8s")


def numbers(text: str) -> tuple[int, ...]:
    size = tuple(map(int, text.split(",")))
    if len(size) != 3 or min(size) < 1:
        raise argparse.ArgumentTypeError(f"must be FRAMES,HEIGHT,WIDTH; got {text}")
    return size


def count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return int(text)


def seconds(text: str) -> float:
    if not float(text) > 0:  # nor NaN
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds; got {text}")
    return float(text)


def finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise argparse.ArgumentTypeError(f"must be a finite number; got {text}")
    return float(text)


def recipe(text: str) -> str:
    if text.split(",")[0] not in vcattn.RECIPES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(vcattn.RECIPES)}, or one with changes, such as vc8,block=64; got {text}")
    q = np.zeros((1, 1, 1, 128), np.float32)
    valid, why_not = vcattn.supports(q, q, q, recipe=text)  # on the CPU, which serves every recipe
    if not valid:
        raise argparse.ArgumentTypeError(f"must have changes that the library knows; got {text}: {why_not}")
    return text


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="DIR", help="checkpoint in diffusers format; default: a small random model")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated; default: those of the model")
    parser.add_argument("--pairs", type=count, metavar="N", help="seeds 0 to N-1 with the prompts in turn; default: each prompt once")
    parser.add_argument("--recipes", nargs="+", type=recipe, default=[], help="default: every recipe that the device serves, or that is emulated there")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, help="of grouping, for --policy-recipes; default: all")
    parser.add_argument("--policy-recipes", nargs="*", type=recipe, help=f"default: {' and '.join(POLICY_RECIPES)}, where they are compared")
    parser.add_argument("--noise-floor", default="auto", metavar="BACKEND", help="second BF16 backend of diffusers, or none")
    parser.add_argument("--size", type=numbers, metavar="F,H,W", help="frames, height, width in pixels; default: by model")
    parser.add_argument("--steps", type=count, help="denoising steps; default: 50, 4 for the random model")
    parser.add_argument("--guidance", type=finite, help="CFG; default: 5, for a checkpoint that of its pipeline")
    parser.add_argument("--batch", type=count, default=1, metavar="N", help="pairs that are generated together")
    parser.add_argument("--lpips", action="store_true", help="also LPIPS; needs its AlexNet weights in torch's cache")
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON of all rows; rows that it has are not computed again")
    parser.add_argument("--commit", help="of vcattn, for the record")
    parser.add_argument("--time-limit", type=seconds, default=math.inf, metavar="SECONDS", help="start no video after that")
    parser.add_argument("--videos", type=Path, metavar="DIR", help="write videos and contact sheets there")
    options = parser.parse_args(arguments)
    compared = options.recipes or vcattn.RECIPES
    unknown = [name for name in options.policy_recipes or () if name not in compared]
    if unknown:
        parser.error(f"--policy-recipes must be among the recipes that are compared, {', '.join(compared)}; got {', '.join(unknown)}; name "
                     "them in --recipes too")  # fmt: skip
    if options.policy_recipes is None:
        options.policy_recipes = [name for name in POLICY_RECIPES if name in compared]
    if options.policies and not options.policy_recipes:
        parser.error(f"--policies needs --policy-recipes that are compared; got none among {', '.join(compared)}; leave out --policies")
    options.policies = options.policies or POLICIES
    return parser, options


def main(arguments: list[str] | None = None) -> Record:
    parser, options = parse(arguments)
    try:
        from comparison import prepare
    except ModuleNotFoundError as error:
        parser.error(f"needs the package {error.name}, which is not installed; install vcattn with [examples], as the README beside says")
    try:
        comparison = prepare(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        record = comparison.run()
    except vcattn.UnsupportedError as error:
        parser.error(str(error))
    if record.rows:
        print(means(record.rows, extra=["seconds"]))
    return record


if __name__ == "__main__":
    main()
