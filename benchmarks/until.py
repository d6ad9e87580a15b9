"""A training whose schedule ends at a given time of the clock, for machines that are lent for a limited time.

    python benchmarks/until.py SECONDS finetune embed --train FILE … --set run.minutes=60

SECONDS: from now to the end of the last step. Reading and teachers' vectors, whose time nobody knows beforehand, are in
them; run.minutes is not read, but a run must have a length.
"""

import sys
import time

from bothways.cli import main
from bothways.train.settings import RunSettings


def done(self: RunSettings, step: int, elapsed: float) -> float:
    """Progress from 0 to 1 after `elapsed` seconds of training."""
    left = _END - time.monotonic()
    return 1.0 if left <= 0 else elapsed / (elapsed + left)


if __name__ == "__main__":
    _END = time.monotonic() + float(sys.argv.pop(1))
    RunSettings.done = done  # type: ignore[method-assign]
    main()
