#!/bin/sh
# A bare loop: the agent gets what it has not said to be done, until it has said so of all.
left="$BENCH_SCRATCH/left"
cp "$BENCH_ITEMS" "$left"
while [ -s "$left" ]; do
    "$BENCH_AGENT" "$(cat "$left")" | sed -n 's/^DONE /done /p' >>"$BENCH_ANSWER"
    sed 's/^done //' "$BENCH_ANSWER" | grep -vxFf - "$BENCH_ITEMS" >"$left" || true
done
