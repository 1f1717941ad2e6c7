"""Looks at every size: its file must hold as many bytes as its header says."""

import json
import os
import sys

with open(os.environ["HEADWAY_DEPENDENCIES"]) as file:
    sizes = json.load(file)["encode"]
broken = []
for size in sizes:
    with open(size["path"], "rb") as picture:
        header = picture.readline() + picture.readline() + picture.readline()
    if os.path.getsize(size["path"]) != len(header) + 3 * size["width"] * size["height"]:
        broken.append(size["path"])
for path in broken:
    print(f"{path} is cut short", file=sys.stderr)
sys.exit(1 if broken else 0)
