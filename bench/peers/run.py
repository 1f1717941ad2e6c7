"""Headway beside Celery, PgQueuer and Procrastinate: the same work, interleaved round by round, printed as ratios.

    python bench/peers/run.py                    three rounds of everything
    python bench/peers/run.py --rounds 1 --only pgqueuer,headway

The speed of a shared machine drifts by up to two times within seconds, so single figures of different runs do not
compare; the ratios of rounds measured next to each other do. The work: no-op functions with inputs of 100 bytes,
submitted in bulk, from the first submit until the last one is recorded as done. Headway additionally carries 100
tenants, three shapes of resources, an event stream and a dependency for every second task, and keeps results.
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

US = "headway"


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
        return float(found["end_to_end_per_s"] if self.name == US else found["tasks"] / found["seconds"])


def main() -> int:
    options = _options()
    wanted = options.only.split(",") if options.only else [US, "celery", "pgqueuer", "procrastinate"]
    with tempfile.TemporaryDirectory(prefix="headway-peers-") as folder, _contenders(wanted, Path(folder)) as field_:
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
    parser.add_argument("--only", help="names, comma-separated: headway, celery, pgqueuer, procrastinate")
    return parser.parse_args()


@contextlib.contextmanager
def _contenders(wanted: list[str], folder: Path) -> Iterator[list[Contender]]:
    """The contenders that can run here, with their stores up."""
    found: list[Contender] = []
    with contextlib.ExitStack() as stores:
        python = str(install.environment()) if set(wanted) - {US} else ""
        if US in wanted:
            bench = [sys.executable, "-m", "headway.bench.main", "--quick", "--only", "end_to_end", "--json"]
            found.append(Contender(US, 0, "yes, results too", bench))
        if {"pgqueuer", "procrastinate"} & set(wanted):
            dsn = stores.enter_context(services.postgres(folder))
            for name, tasks in (("pgqueuer", 40_000), ("procrastinate", 2_000)):
                if name in wanted:
                    found.append(Contender(name, tasks, "yes, no results", _race(python, name, dsn, tasks)))
        if "celery" in wanted:
            program = install.redis_server()
            if program is None:
                print("celery is left out: there is no redis-server, and only root can install one", file=sys.stderr)
            else:
                where = stores.enter_context(services.redis(program, folder))
                found.append(Contender("celery", 2_500, "no", _race(python, "celery", where, 2_500)))
        yield found


def _race(python: str, name: str, where: str, tasks: int) -> list[str]:
    return [python, "-W", "ignore", str(HERE / f"with_{name}.py"), "race", where, "--tasks", str(tasks)]


def _report(contenders: list[Contender]) -> None:
    ours = next((c for c in contenders if c.name == US), None)
    print(f"{'':<14} {'tasks/s':>10}  {'headway is':>11}  durable")
    out: dict[str, dict[str, object]] = {}
    for contender in contenders:
        # The ratio of each round, then their median: a drift between rounds leaves it alone.
        ratios = [a / b for a, b in zip(ours.rates, contender.rates, strict=True)] if ours else []
        ratio = statistics.median(ratios) if ratios and contender is not ours else None
        times = f"{ratio:.1f} times" if ratio else ""
        print(f"{contender.name:<14} {statistics.median(contender.rates):>10,.0f}  {times:>11}  {contender.durable}")
        out[contender.name] = {
            "per_s": round(statistics.median(contender.rates), 1),
            "rounds": [round(rate, 1) for rate in contender.rates],
            "durable": contender.durable,
            **({"ratio": round(ratio, 2)} if ratio else {}),
        }
    print(json.dumps(out))


if __name__ == "__main__":
    sys.exit(main())
