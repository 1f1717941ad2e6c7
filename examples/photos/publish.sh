#!/bin/sh
# Puts all sizes where readers find them, at once.
set -e
rm -rf "$1/public.new" && mkdir "$1/public.new"
for picture in "$1"/[0-9]*.ppm; do cp "$picture" "$1/public.new/"; done
rm -rf "$1/public" && mv "$1/public.new" "$1/public"
ls "$1/public" | wc -l | tr -d ' ' > "$HEADWAY_RESULT"
