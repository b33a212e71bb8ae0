#!/bin/sh
# ./ssh.sh RUN MACHINE...: all machines measure blocks of the run until it has all of them.
# Each reaches the ledger by GUESTMARK_LEDGER, which is passed on, and has guestmark, or GUESTMARK says where.

run=${1:?is the id that guestmark run --prepare-only printed}
shift
at_work() {
    while :; do
        ${SSH:-ssh} -o BatchMode=yes -o ServerAliveInterval=15 "$1" \
            "GUESTMARK_LEDGER='$GUESTMARK_LEDGER' ${GUESTMARK:-guestmark} block '$run' --machine '$1'" </dev/null
        status=$?
        case $status in
        0 | 1) ;;
        4) return 0 ;;
        75 | 137 | 143 | 255) sleep "${PAUSE:-10}" ;; # others have the last blocks, it was killed, or ssh failed
        *) echo "$1: status $status; the other machines go on" >&2 && return "$status" ;;
        esac
    done
}
for machine in "$@"; do
    at_work "$machine" &
done
wait
