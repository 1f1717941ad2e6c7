#!/bin/sh
# Starts the Java runner. Compiling it takes ten times as long as starting it, so the class is kept, by the content of its source.
source=${0%/*}/Runner.java
sum=$(cksum < "$source") || exit 70
kept=${XDG_CACHE_HOME:-${HOME:-/nowhere}/.cache}/headway/java-runner-$(echo "$sum" | tr ' ' -)
if [ ! -f "$kept/Runner.class" ] && mkdir -p "$kept.$$" 2> /dev/null; then
    javac -d "$kept.$$" "$source" > /dev/null 2>&1 && mv -T "$kept.$$" "$kept" 2> /dev/null
    rm -rf "$kept.$$"
fi
if [ -f "$kept/Runner.class" ]; then
    exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$kept" Runner
fi
exec java -XX:+UseSerialGC "$source" # no place to keep it, or no compiler of its own
