"""How much slower a task becomes beside a hostile one: each kind of harm, at each level, against being alone (H11).

    python bench/micro/neighbours.py [--turns 8] [--seconds 0.7] [--only "fork bomb"]

One agent of two CPUs; a neighbour with half a CPU that computes, then one that writes and syncs; a hostile task with half a CPU. Turns
alone and turns beside it alternate in one run. The bar is 25 %, for a node whose CPUs are its own: on a machine that others use too, run it
in a cpu group with a large share, or the two halve what the others leave.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.confined import LEVELS, confining
from tests.support.neighbours import HOSTILE, NEIGHBOURS, compare, neighbour


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--turns", type=int, default=8)
    asked.add_argument("--seconds", type=float, default=0.7)
    asked.add_argument("--only", choices=list(HOSTILE))
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder, confining(Path(folder), cpus=2.0, max_output=2**20) as (server, _):
        for kind in NEIGHBOURS:
            counter = Path(folder) / "counter"
            with neighbour(server, kind, counter):
                for hostile in [options.only] if options.only else HOSTILE:
                    for level in LEVELS:
                        level_word = "" if level == "none" else level
                        found = compare(server, hostile, level_word, counter, turns=options.turns, seconds=options.seconds)
                        print(f"{kind:9} {hostile:17} {level:8} {found}", flush=True)


if __name__ == "__main__":
    main()
