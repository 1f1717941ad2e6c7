"""What tests/faults/test_resuming.py runs."""

from __future__ import annotations

import json
import os
import sys
import time


def note(trail: str, text: str) -> None:
    with open(trail, "a") as file:
        file.write(f"{text}\n")


def train(trail: str, steps: int, patient: int) -> None:
    """A long training: a checkpoint after each step. Its first attempt stops for ever before the last step."""
    attempt = int(os.environ["HEADWAY_ATTEMPT"])
    place = os.path.join(os.environ["HEADWAY_CHECKPOINT_DIR"], "model.json")
    step = 0
    if os.path.exists(place):
        with open(place) as file:
            step = json.load(file)["step"]
    while step < steps:
        if attempt == 1 and step == patient:
            note(trail, "waits")
            time.sleep(600)
        note(trail, f"step {step} attempt {attempt}")
        step += 1
        with open(f"{place}.tmp", "w") as file:
            json.dump({"step": step}, file)
        os.replace(f"{place}.tmp", place)
    with open(os.environ["HEADWAY_RESULT"], "w") as file:
        json.dump(step, file)


def fan_out(count: int, trail: str) -> int:
    """Submits `count` subtasks and adds up what they result in."""
    import headway

    handles = headway.current().map(one, [[n, trail] for n in range(count)])
    note(trail, "submitted")
    return sum(handle.result() for handle in handles)


def one(item: list) -> int:
    n, trail = item
    time.sleep(0.05)
    note(trail, f"child {n}")
    return int(n)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
