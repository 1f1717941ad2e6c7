#!/usr/bin/env python3
"""One table of all stations: report.py STATION... It runs last, because the analyses are its subtasks."""

import json
import os
import sys


def main(stations: list[str]) -> None:
    folder = os.environ.get("DEMO_FOLDER", "/tmp/headway-demo")
    summaries = []
    for station in stations:
        with open(f"{folder}/{station}.json") as file:
            summaries.append(json.load(file))
    summaries.sort(key=lambda summary: -summary["mean"])
    print(f"{'station':<8} {'mean':>7} {'low':>15} {'high':>15}  the day")
    for one in summaries:
        low, high = (f"{celsius:.1f} °C {hour}" for hour, celsius in (one["low"], one["high"]))
        print(f"{one['station']:<8} {one['mean']:>4.1f} °C {low:>15} {high:>15}  {one['curve']}")
    warmest = summaries[0]
    if result := os.environ.get("HEADWAY_RESULT"):
        with open(result, "w") as file:
            json.dump({"warmest": warmest["station"], "mean": warmest["mean"], "stations": len(summaries)}, file)
    print(f"Warmest of {len(summaries)}: {warmest['station']} with {warmest['mean']} °C on average.")


main(sys.argv[1:])
