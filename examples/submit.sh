#!/bin/sh
# The HTTP API by hand: submit a command, wait for it, read its output. Needs curl, and HEADWAY_URL and HEADWAY_TOKEN.
set -eu
url=${HEADWAY_URL:-http://127.0.0.1:8470}
token=${HEADWAY_TOKEN:-$(cat "${HEADWAY_DATA:-$HOME/.local/share/headway}/token")}

call() {
    curl --silent --show-error --fail-with-body --header "Authorization: Bearer $token" "$@"
}

answer=$(call --json '{"name": "hello", "command": ["echo", "hello from curl"], "attempts": 3}' "$url/v1/tasks")
id=$(printf '%s' "$answer" | sed -n 's/.*"id": *"\([0-9]*\)".*/\1/p')
echo "task $id"
call "$url/v1/tasks/$id?wait=30" > /dev/null # held until the task has ended, or 30 s are over
call "$url/v1/tasks/$id/logs?raw=1"
