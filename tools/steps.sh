# Steps of set-up: each runs one command with its output in a log, shows that it goes on, and stops it with the launcher.
# Sourced by tools/setup.sh. POSIX sh.

# seconds_of TIME: 90, 90s, 20m and 2h in seconds; nothing for what is no time.
seconds_of() {
    case ${1%[smh]} in '' | *[!0-9]*) return ;; esac
    case $1 in
    *m) echo $((${1%m} * 60)) ;;
    *h) echo $((${1%h} * 3600)) ;;
    *) echo "${1%s}" ;;
    esac
}

say() { printf 'guestmark: %s\n' "$*" >&2; }

# fail STATUS MESSAGE [HINT…]: what is wrong, what to do.
fail() {
    fail_status=$1
    shift
    printf 'guestmark: error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    [ -z "$beside" ] || kill -TERM "$beside" 2>/dev/null
    rm -f "$state/begin.$$"
    exit "$fail_status"
}

# write_file PATH TEXT: the whole file or nothing.
write_file() { printf '%s\n' "$2" >"$1.new.$$" && mv -f "$1.new.$$" "$1"; }

# Says that a step is still going on: every second on a terminal, else every half minute. Ends with the launcher.
tell_progress() { # WHAT START
    trap - INT TERM HUP EXIT
    next=30
    while sleep 1 </dev/null >/dev/null 2>&1 && [ -e /proc/$$/exe ]; do # (a killed launcher may stay as a zombie)
        elapsed=$(($(date +%s) - $2))
        if [ -t 2 ]; then
            [ "$elapsed" -lt 2 ] || printf '\r\033[Kguestmark: %s … %s s' "$1" "$elapsed" >&2
        elif [ "$elapsed" -ge "$next" ]; then
            next=$((next + 30))
            say "$1 … $elapsed s"
        fi
    done
}

# step WHAT COMMAND…: runs it with its output in the log; on failure one line, the log's last words and where it is.
# The command has its own session, so that an interruption ends all of it, and dies with the launcher where the
# system can do that.
step() {
    step_begin "$1"
    shift
    setsid $die_with_us "$@" </dev/null >>"$log" 2>&1 &
    step_pid=$!
    wait "$step_pid"
    step_status=$?
    step_pid=
    step_end
}

# As step, for apt-get: it stays in the terminal's session (sudo may ask there), is never killed by us (it stops
# by itself where it safely can) and does not hold our lock.
step_apt() {
    step_begin "$1"
    shift
    "$@" >>"$log" 2>&1 9>&-
    step_status=$?
    step_end
}

step_begin() {
    step_what=$1
    step_start=$(date +%s)
    printf '\n==== %s\n' "$step_what" >>"$log"
    [ -t 2 ] || say "$step_what"
    [ -n "$alone" ] || return 0
    tell_progress "$step_what" "$step_start" 9>&- >/dev/null &
    ticker=$!
}

step_end() {
    [ -z "$ticker" ] || { kill "$ticker" && wait "$ticker"; } 2>/dev/null
    ticker=
    elapsed=$(($(date +%s) - step_start))
    [ ! -t 2 ] || printf '\r\033[K' >&2
    if [ "$step_status" -ne 0 ]; then
        tail -n 5 "$log" | sed 's/^/  | /' >&2
        fail 3 "$step_what failed (exit status $step_status)" "the full log: $log" "start again to go on from here"
    fi
    if [ -t 2 ] || [ "$elapsed" -ge 2 ]; then say "$step_what: done in $elapsed s"; fi
}

stop_step() {
    trap '' INT TERM HUP
    [ -z "$ticker" ] || kill "$ticker" 2>/dev/null
    [ -z "$step_pid" ] || kill -s TERM -- "-$step_pid" 2>/dev/null
    [ -z "$beside" ] || { kill -TERM "$beside" && wait "$beside"; } 2>/dev/null
    [ -z "$1" ] || {
        [ -n "$alone" ] || exit "$1"
        [ ! -t 2 ] || printf '\r\033[K' >&2
        rm -f "$state/begin.$$"
        say "interrupted; the next start goes on from here"
        exit "$1"
    }
}
