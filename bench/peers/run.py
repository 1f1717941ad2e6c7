"""Headway beside Celery, PgQueuer and Procrastinate: the same work, interleaved round by round, printed as ratios.

    python bench/peers/run.py                    three rounds of everything
    python bench/peers/run.py --rounds 1 --only pgqueuer,headway
    python bench/peers/run.py --long             rounds of some twelve seconds instead of two: less of a start, more of a steady state

The speed of a shared machine drifts by up to two times within seconds, so single figures of different runs do not
compare; the ratios of rounds measured next to each other do. The work: no-op functions with inputs of 100 bytes,
submitted in bulk, from the first submit until the last one is recorded as done. Headway additionally carries 100
tenants, three shapes of resources, an event stream and a dependency for every second task, and keeps results; `headway-plain`
is Headway with the work of the others: one tenant, one shape, no dependencies, nobody listening. Results are kept there too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import install  # noqa: E402  (the folder is no package: its programs run in two environments)
import services  # noqa: E402

US, PLAIN = "headway", "headway-plain"
CELERY = {"celery": 2, "celery_prefork": 1}  # workers
FIGURE = {US: "end_to_end_per_s", PLAIN: "plain_per_s"}
LONGER = 6  # a long round beside a usual one


@dataclass
class Contender:
    """One queue in the race."""

    name: str
    tasks: int  # enough for a few seconds
    durable: str
    command: list[str]
    rates: list[float] = field(default_factory=list)

    def run(self) -> float:
        """One round, in tasks a second."""
        done = subprocess.run(self.command, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{self.name}: the round failed with {done.returncode}, no figures")
        found = json.loads(done.stdout.decode().strip().splitlines()[-1])
        return float(found[FIGURE[self.name]] if self.name in FIGURE else found["tasks"] / found["seconds"])


def main() -> int:
    options = _options()
    wanted = options.only.split(",") if options.only else [US, PLAIN, *CELERY, "pgqueuer", "procrastinate"]
    with tempfile.TemporaryDirectory(prefix="headway-peers-") as folder, _contenders(wanted, Path(folder), long=options.long) as field_:
        for round_ in range(options.rounds):
            for contender in field_:
                rate = contender.run()
                contender.rates.append(rate)
                print(f"round {round_ + 1}  {contender.name:<14} {rate:>10,.0f} tasks/s", file=sys.stderr)
    _report(field_)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", action="store_true", help="rounds of some twelve seconds instead of two, for everybody")
    parser.add_argument("--only", help="names, comma-separated: headway, headway-plain, celery, celery_prefork, pgqueuer, procrastinate")
    return parser.parse_args()


@contextlib.contextmanager
def _contenders(wanted: list[str], folder: Path, *, long: bool) -> Iterator[list[Contender]]:
    """The contenders that can run here, with their stores up."""
    found: list[Contender] = []
    quick, times = ([], LONGER) if long else (["--quick"], 1)
    with contextlib.ExitStack() as stores:
        python = str(install.environment()) if set(wanted) - set(FIGURE) else ""
        for name, figure in FIGURE.items():
            if name in wanted:
                scenario = figure.removesuffix("_per_s")
                bench = [sys.executable, "-m", "headway.bench.main", *quick, "--only", scenario, "--json"]
                found.append(Contender(name, 0, "yes, results too", bench))
        if {"pgqueuer", "procrastinate"} & set(wanted):
            dsn = stores.enter_context(services.postgres(folder))
            for name, tasks in (("pgqueuer", 40_000 * times), ("procrastinate", 2_000 * times)):
                if name in wanted:
                    found.append(Contender(name, tasks, "yes, no results", _race(python, name, dsn, tasks)))
        if CELERY.keys() & set(wanted):
            program = install.redis_server()
            if program is None:
                print("celery is left out: there is no redis-server, and only root can install one", file=sys.stderr)
            else:
                where = stores.enter_context(services.redis(program, folder))
                for name, workers in CELERY.items():
                    if name in wanted:
                        race = [*_race(python, name, where, 2_500 * times), "--workers", str(workers)]
                        found.append(Contender(name, 2_500 * times, "no", race))
        yield found


def _race(python: str, name: str, where: str, tasks: int) -> list[str]:
    return [python, "-W", "ignore", str(HERE / f"with_{name}.py"), "race", where, "--tasks", str(tasks)]


def _report(contenders: list[Contender]) -> None:
    ours = {c.name: c for c in contenders if c.name in FIGURE}
    print(f"{'':<14} {'tasks/s':>10}  {'headway is':>11}  {'plain':>11}  durable")
    out: dict[str, dict[str, object]] = {}
    for contender in contenders:
        rates = contender.rates
        # The ratio of each round, then their median: a drift between rounds leaves it alone.
        ratios = {
            name: statistics.median(a / b for a, b in zip(our.rates, rates, strict=True))
            for name, our in ours.items()
            if contender.name not in FIGURE
        }
        times = "  ".join(f"{f'{ratios[name]:.2f} times' if name in ratios else '':>11}" for name in FIGURE)
        print(f"{contender.name:<14} {statistics.median(rates):>10,.0f}  {times}  {contender.durable}")
        out[contender.name] = {
            "per_s": round(statistics.median(rates), 1),
            "rounds": [round(rate, 1) for rate in rates],
            "durable": contender.durable,
            **{word: round(ratios[name], 2) for name, word in ((US, "ratio"), (PLAIN, "ratio_plain")) if name in ratios},
        }
    print(json.dumps(out))


if __name__ == "__main__":
    sys.exit(main())
