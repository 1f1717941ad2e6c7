"""Makes the picture smaller: every pixel of the result is one of the original's."""

import json
import os
import sys

folder, wanted = sys.argv[1], int(sys.argv[2])
with open(f"{folder}/original.ppm", "rb") as file:
    _, (width, height), _ = file.readline(), map(int, file.readline().split()), file.readline()
    pixels = file.read()
tall = wanted * height // width
path = f"{folder}/{wanted}.ppm"
with open(path, "wb") as file:
    file.write(b"P6\n%d %d\n255\n" % (wanted, tall))
    for y in range(tall):
        row = (y * height // tall) * width
        for x in range(wanted):
            at = 3 * (row + x * width // wanted)
            file.write(pixels[at : at + 3])
if os.environ.get("SPOIL") == str(wanted):
    os.truncate(path, 100)
with open(os.environ["HEADWAY_RESULT"], "w") as result:
    json.dump({"path": path, "width": wanted, "height": tall}, result)
