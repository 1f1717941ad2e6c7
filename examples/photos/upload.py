"""Makes a picture (PPM, which needs no library) and says in which widths it should be offered."""

import json
import os
import sys

folder, width = sys.argv[1], int(sys.argv[2])
height = width * 3 // 4
os.makedirs(folder, exist_ok=True)
with open(f"{folder}/original.ppm", "wb") as file:
    file.write(b"P6\n%d %d\n255\n" % (width, height))
    for y in range(height):
        file.write(bytes(value for x in range(width) for value in (x * 255 // width, y * 255 // height, (x ^ y) & 255)))
sizes = [size for size in (64, 128, 256, 512, 1024) if size < width]
with open(os.environ["HEADWAY_RESULT"], "w") as result:
    json.dump(sizes, result)
print(f"{width} x {height} pixels, to be offered in {sizes}")
