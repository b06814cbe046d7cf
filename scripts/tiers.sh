#!/usr/bin/env bash
# Run tiers one after the other, all of them even when one fails, and say what each took.
#
#   scripts/tiers.sh NAME COMMAND [NAME COMMAND ...]
#
# Ends with one line a tier; exits 1 if any failed. A tier of pytest that found no tests has
# failed: a marker somebody renamed must not look like success. With TIERS_LOG set, the lines are
# also appended to that file.
set -u

if (($# == 0 || $# % 2)); then
  echo "tiers.sh: give pairs of a name and a command" >&2
  exit 2
fi

lines=()
failed=0
while (($#)); do
  name=$1 command=$2
  shift 2
  printf '\n== %s\n' "$name"
  began=$SECONDS
  bash -c "$command"
  code=$?
  took=$((SECONDS - began))
  if ((code == 0)); then
    line=$(printf 'ok      %-14s %4d s' "$name" "$took")
  else
    failed=1
    line=$(printf 'FAILED  %-14s %4d s  (exit code %d)' "$name" "$took" "$code")
    if ((code == 5)) && [[ $command == *pytest* ]]; then line+=': no tests found'; fi
  fi
  lines+=("$line")
  if [[ -n ${TIERS_LOG:-} ]]; then echo "$line" >>"$TIERS_LOG"; fi
done

echo
printf '%s\n' "${lines[@]}"
exit "$failed"
