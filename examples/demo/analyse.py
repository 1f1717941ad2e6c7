#!/usr/bin/env python3
"""Means and extremes of one station: analyse.py STATION. Plain Python, no Headway import: any program can be a task."""

import csv
import json
import os
import sys
import time

BARS = "▁▂▃▄▅▆▇█"


def curve(values: list[float]) -> str:
    """The day as a line of bars."""
    low, high = min(values), max(values)
    return "".join(BARS[round((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in values)


def main(station: str) -> None:
    folder = os.environ.get("DEMO_FOLDER", "/tmp/headway-demo")
    pause = float(os.environ.get("DEMO_PAUSE", "0.12"))
    with open(f"{folder}/{station}.csv") as file:
        rows = [(hour, float(celsius)) for hour, celsius in csv.reader(file)]
    for done in range(1, 11):
        time.sleep(2 * pause)
        print(f"headway progress {done}/10 {station}", flush=True)
    values = [celsius for _, celsius in rows]
    summary = {
        "station": station,
        "mean": round(sum(values) / len(values), 1),
        "low": min(rows, key=lambda row: row[1]),
        "high": max(rows, key=lambda row: row[1]),
        "curve": curve(values),
    }
    with open(f"{folder}/{station}.json", "w") as file:
        json.dump(summary, file)
    if result := os.environ.get("HEADWAY_RESULT"):
        with open(result, "w") as file:
            json.dump(summary, file)
    print(f"{station}: mean {summary['mean']} °C over {len(values)} readings")


main(sys.argv[1])
