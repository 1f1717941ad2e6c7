#!/bin/sh
# Writes one day of readings of a station: collect.sh STATION MEAN SWING
#
# What a task may use: HEADWAY_RESULT is the file for its result (JSON), and a line "headway progress DONE/TOTAL TEXT" on
# standard output moves its bar.
set -eu
station=$1 mean=$2 swing=$3
folder=${DEMO_FOLDER:-/tmp/headway-demo} readings=${DEMO_READINGS:-24} pause=${DEMO_PAUSE:-0.12}
mkdir -p "$folder"

# A new file for each attempt, put in place at the end: a run that is killed half way leaves nothing half written.
draft="$folder/$station.$$"
trap 'rm -f "$draft"' EXIT
hour=0
while [ "$hour" -lt "$readings" ]; do
    awk -v h="$hour" -v n="$readings" -v mean="$mean" -v swing="$swing" -v seed="${#station}" 'BEGIN {
        noise = sin(h * 12.9898 + seed * 78.233) * 0.8
        printf "%02d:00,%.1f\n", h % 24, mean + swing * sin((h / n) * 6.2832 - 2.1) + noise
    }' >> "$draft"
    hour=$((hour + 1))
    echo "headway progress $hour/$readings $station"
    sleep "$pause"
done
mv "$draft" "$folder/$station.csv"
echo "$station: $readings readings in $folder/$station.csv"
[ -z "${HEADWAY_RESULT:-}" ] || printf '{"station": "%s", "readings": %d}\n' "$station" "$readings" > "$HEADWAY_RESULT"
