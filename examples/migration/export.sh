#!/bin/sh
# The old data, frozen: everything after this works on the same snapshot.
set -e
mkdir -p "$FOLDER"
echo "export" >> "$FOLDER/stages"
{
    echo "id,name,balance"
    awk -v n="$CUSTOMERS" 'BEGIN { for (i = 1; i <= n; i++) printf "%d,customer %d,%d.50\n", i, i, (i * 37) % 1000 }'
} > "$FOLDER/old.csv.tmp"
mv "$FOLDER/old.csv.tmp" "$FOLDER/old.csv"
echo "exported $CUSTOMERS customers"
