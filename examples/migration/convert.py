"""From the snapshot into a new database, built beside the old one: to run it again is to build it again."""

import csv
import os
import sqlite3
import sys

folder = os.environ["FOLDER"]
with open(f"{folder}/stages", "a") as trail:
    trail.write("convert\n")
building = f"{folder}/new.db.tmp"
if os.path.exists(building):
    os.unlink(building)
database = sqlite3.connect(building)
database.execute("create table customer (id integer primary key, name text not null, cents integer not null)")
with open(f"{folder}/old.csv", newline="") as file:
    for row in csv.DictReader(file):
        if row["id"] == "100" and os.environ["STUMBLE"] == "yes" and os.environ["HEADWAY_ATTEMPT"] == "1":
            sys.exit("customer 100: the connection to the old system was lost")
        database.execute("insert into customer values (?, ?, ?)", (row["id"], row["name"], round(float(row["balance"]) * 100)))
database.commit()
database.close()
os.replace(building, f"{folder}/new.db")
print("converted")
