#!/usr/bin/env bash
# The hook of the design document ultramon grew out of, with its review applied: the status line
# leaves a file, the hook reads it with jq and warns at 35 and 25 % remaining. Only measured here.
payload=$(cat)
session=$(jq -r '.session_id // empty' <<<"$payload" | tr -cd 'A-Za-z0-9_-')
bridge="${TMPDIR:-/tmp}/claude-ctx-$session.json"
[ -n "$session" ] && [ -f "$bridge" ] || exit 0
written=$(jq -r '.timestamp // 0' "$bridge")
[ $(($(date +%s) - written)) -le 60 ] || exit 0
remaining=$(jq -r '.remaining_percentage // empty | round' "$bridge")
[ -n "$remaining" ] && [ "$remaining" -le 35 ] || exit 0
used=$(jq -r '.used_pct // empty' "$bridge")
severity=WARNING
[ "$remaining" -le 25 ] && severity=CRITICAL
counter_file="${TMPDIR:-/tmp}/claude-ctx-warn-$session"
counter=0 last=
[ -f "$counter_file" ] && { read -r counter && read -r last; } <"$counter_file"
if [ -n "$last" ] && [ "$last" = "$severity" ] && [ "$counter" -lt 5 ]; then
  printf '%s\n%s\n' $((counter + 1)) "$severity" >"$counter_file"
  exit 0
fi
printf '0\n%s\n' "$severity" >"$counter_file"
jq -n --arg text "$severity: $used% of the context window used, $remaining% remain." \
  '{hookSpecificOutput: {hookEventName: "PostToolUse", additionalContext: $text}}'
