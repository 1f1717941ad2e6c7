"""One page: who ordered for how much, and the sum."""

import json
import os
import sys

with open(os.environ["HEADWAY_DEPENDENCIES"]) as file:
    results = json.load(file)
orders, names = results["clean"], results["names"]
print(f"orders of {sys.argv[1]}")
for name in names:
    print(f"  {name:<10} {sum(order['amount'] for order in orders if order['who'] == name):8.2f}")
total = sum(order["amount"] for order in orders)
print(f"  {'together':<10} {total:8.2f}")
with open(os.environ["HEADWAY_RESULT"], "w") as result:
    json.dump({"day": sys.argv[1], "customers": len(names), "total": total}, result)
