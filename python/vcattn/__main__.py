"""`python -m vcattn`: prints the configuration and runs a self-check; exit status 1 where it fails."""

import importlib.util
import sys

from vcattn._config import self_check, show_config


def main() -> int:
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401  to be shown
    show_config()
    print()
    failed = False
    for device, recipe, error, bound in self_check():
        verdict = "ok" if error < bound else f"FAILED, below {bound:.1%} required"
        failed |= not error < bound
        print(f"self-check {device:<5}{recipe:<10} relative error {error:.3%}  {verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
