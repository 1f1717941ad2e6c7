"""The new database against the snapshot: as many customers, and as much money."""

import csv
import json
import os
import sqlite3

folder = os.environ["FOLDER"]
with open(f"{folder}/stages", "a") as trail:
    trail.write("check\n")
with open(f"{folder}/old.csv", newline="") as file:
    rows = list(csv.DictReader(file))
count, cents = sqlite3.connect(f"{folder}/new.db").execute("select count(*), sum(cents) from customer").fetchone()
expected = (len(rows), round(sum(float(row["balance"]) for row in rows) * 100))
if (count, cents) != expected:
    raise SystemExit(f"{count} customers with {cents} cents, expected {expected[0]} with {expected[1]}")
print(json.dumps({"customers": count, "cents": cents}))
