#!/bin/bash
# One step of a job: measures $COMMAND on $PLATFORMS under $LIMITS (one for each line), with $OPTIONS. The report goes to
# guestmark.html, what became of the limits to guestmark-gates.xml. Exits with 1 for a broken limit, with 0 for an undecided
# one unless $UNDECIDED is `fail`.
set -u
guestmark=${GUESTMARK:-"$(dirname "$0")/../../guestmark"}
read -ra options <<<"${OPTIONS:-}"
read -ra command <<<"$COMMAND"
limits=()
while IFS= read -r limit; do
    [ -n "${limit// /}" ] && limits+=(--fail-if "$limit")
done <<<"$LIMITS"
"$guestmark" exec --on "${PLATFORMS:-host}" "${limits[@]}" --html guestmark.html --junit guestmark-gates.xml \
    "${options[@]}" -- "${command[@]}"
status=$?
if [ $status -eq 125 ]; then
    echo "::warning::guestmark cannot tell whether the limits are kept; see the summary"
    [ "${UNDECIDED:-pass}" = pass ] && exit 0
    exit 1
fi
exit $status
