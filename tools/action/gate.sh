#!/bin/bash
# One step of a job: measures $COMMAND on $PLATFORMS under $LIMITS (one for each line), with $OPTIONS. The report goes to
# guestmark.html, the run to guestmark.gmk.html, what became of the limits to guestmark-gates.xml. Exits with 1 for a broken
# limit, with 0 for an undecided one unless $UNDECIDED is `fail`.
set -u
guestmark=${GUESTMARK:-"$(dirname "$0")/../../guestmark"}
split() { # NAME TEXT: the words of a text, in which quotes and lines mean what they mean in a shell
    words=$(printf '%s' "${2//\\$'\n'/ }" | xargs -n 1 printf '%s\n') || {
        printf 'guestmark: the words of %s cannot be told apart: %s\n  close its quotes\n' "$1" "$2" >&2
        exit 130
    }
    found=()
    [ -z "$words" ] || mapfile -t found <<<"$words"
}
split options "${OPTIONS:-}"
options=("${found[@]}")
split command "$COMMAND"
command=("${found[@]}")
limits=()
while IFS= read -r limit; do
    [ -n "${limit// /}" ] && limits+=(--fail-if "$limit")
done <<<"$LIMITS"
platforms=${PLATFORMS:-auto}
if [ "$platforms" = auto ]; then # a device file proves nothing: a guest has to boot
    platforms=host,tcg
    if [ -e /dev/kvm ] && "$guestmark" doctor --json | tr -d ' \n' | grep -q '"name":"kvm","usable":true'; then
        platforms=host,kvm
    fi
    echo "guestmark: measuring on $platforms"
fi
"$guestmark" exec --on "$platforms" "${limits[@]}" --html guestmark.html --junit guestmark-gates.xml \
    "${options[@]}" -- "${command[@]}"
status=$?
if [ $status -lt 128 ]; then
    "$guestmark" export last --bundle guestmark.gmk.html || :
fi
if [ $status -eq 125 ]; then
    warning="guestmark cannot tell whether the limits are met; see the report"
    if [ -n "${GITHUB_ACTIONS:-}" ]; then echo "::warning::$warning"; else echo "$warning"; fi
    [ "${UNDECIDED:-pass}" = pass ] && exit 0
    exit 1
fi
exit $status
