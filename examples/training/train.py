"""Learns y = 3x + 1 from noisy points, an epoch at a time. The state of it is two numbers, saved after each epoch."""

import json
import os
import random
import sys
import time

epochs, pause, crash = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
saved = os.path.join(os.environ["HEADWAY_CHECKPOINT_DIR"], "state.json")
state = {"epoch": 0, "slope": 0.0, "offset": 0.0, "began": []}
if os.path.exists(saved):
    with open(saved) as file:
        state = json.load(file)
    print(f"going on after epoch {state['epoch']}")
state["began"].append(state["epoch"])

for epoch in range(state["epoch"] + 1, epochs + 1):
    luck = random.Random(epoch)
    for _ in range(50):
        x = luck.uniform(-1, 1)
        wrong = state["slope"] * x + state["offset"] - (3 * x + 1 + luck.gauss(0, 0.1))
        state["slope"] -= 0.05 * wrong * x
        state["offset"] -= 0.05 * wrong
    state["epoch"] = epoch
    with open(saved + ".tmp", "w") as file:
        json.dump(state, file)
    os.replace(saved + ".tmp", saved)  # a checkpoint is there whole, or it is the one before
    print(f"headway progress {epoch}/{epochs} slope {state['slope']:.2f}", flush=True)
    time.sleep(pause)
    if epoch == crash and os.environ["HEADWAY_ATTEMPT"] == "1":
        time.sleep(2)  # until the checkpoint has been taken
        os.kill(os.getpid(), 9)

with open(os.environ["HEADWAY_RESULT"], "w") as result:
    json.dump(state, result)
