# Set-up of a guestmark checkout; sourced by ./guestmark and ./test with $root set. POSIX sh.
#
#   .venv/             Python environment with the locked dependencies; .venv/.guestmark says from which lock
#                      (-dev, -fleet and -history: what the checks, fleets and change points need besides)
#   target/            the agent, built by cargo; .setup/agent says from which sources; .setup/capture the same of the
#                      capture engine, which is built when it is first used; .setup/stacks of what only long tests need
#   .setup/stamp       everything is there; its time is that of the beginning of set-up, so an edit made meanwhile counts
#   .setup/setup.log   what cargo and apt-get said last; python.log: what pip said
#   .setup/lock        held while setting up
#
# Each part's key is written, by renaming, only when the part is complete: whatever interrupts set-up, the next start
# finds the key missing and does that part again.

state=$root/.setup
log=$state/setup.log
beside= # the process that does another part at the same time
alone=yes # no other process writes to the terminal

. "$root/tools/steps.sh"
. "$root/tools/packages.sh"

key_of() { # FILE…: one hash over names and contents, independent of where the checkout is and of file times
    (cd "$root" && find "$@" -type f -exec sha256sum {} + | LC_ALL=C sort | sha256sum | cut -d' ' -f1)
}
locked() { sh "$root/tools/locked" "$@"; } # GROUP…
groups_of() { # PART: the groups that an environment with it has
    case $1 in venv) echo run ;; dev) echo run dev frames ;; fleet) echo run fleet ;; *) echo "$1" ;; esac
}
# shellcheck disable=SC2046
part_key() { locked $(groups_of "$1") | sha256sum | cut -d' ' -f1; } # PART
venv_key() { part_key venv; }
agent_key() { key_of Cargo.toml Cargo.lock .cargo crates/agent crates/wire; }
capture_key() { key_of Cargo.toml Cargo.lock .cargo crates; }
stacks_key() { key_of .cargo tests/stacks/smoltcp; }
holds() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

venv_ready() { [ -x "$root/.venv/bin/python" ] && holds "$root/.venv/.guestmark" "$(venv_key)"; }
program_ready() { # FILE KEY: the file names a program and what it was built from
    { read -r program && read -r built; } 2>/dev/null <"$1" && [ -x "$root/$program" ] && [ "$built" = "$2" ]
}
agent_ready() { program_ready "$state/agent" "$(agent_key)" && agent=$program; }
# Whether there is a capture engine, also one of earlier versions, which built it with the agent.
capture_there() {
    for file in "$state/capture" "$root"/target/*/release/guestmark-capture; do [ ! -e "$file" ] || return 0; done
    return 1
}
capture_ready() { program_ready "$state/capture" "$(capture_key)"; }
stacks_ready() { program_ready "$state/stacks" "$(stacks_key)"; }

# Modules that no start imports: compiled they would take 20 MB.
seldom='/site-packages/(pip|pygments/(lexers|styles)|numpy/(distutils|f2py|typing)|sqlalchemy/(ext|orm|testing))/'

# Installs exactly what the lock names for a part, nothing built from source: by uv where it is in PATH, which is faster.
# uv does not read pip's settings, though: where there are any (an index, a certificate), pip is used.
install_locked() { # WHAT PART OPTION…
    what=$1 wanted=$state/$2.txt
    # shellcheck disable=SC2046
    write_file "$wanted" "$(locked $(groups_of "$2"))"
    shift 2
    if command -v uv >/dev/null && [ -z "$("$root/.venv/bin/python" -B -m pip config list 2>/dev/null)" ]; then
        set -- uv pip install --python "$root/.venv/bin/python" "$@"
    else
        set -- "$root/.venv/bin/python" -B -m pip install --no-compile "$@"
    fi
    step "$what" env -u PIP_TARGET -u PIP_PREFIX PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$@" --quiet --require-hashes --only-binary :all: -r "$wanted"
    find "$root/.venv/lib" -type d -path '*/numpy/*' -name tests -prune -exec rm -rf {} +
    step "compiling Python modules" sh -c '"$@" || :' sh \
        "$root/.venv/bin/python" -I -m compileall -q -j 0 -x "$seldom" "$root/.venv/lib" "$root/python"
}

make_venv() {
    key=$(venv_key)
    if [ -e "$root/.venv/.guestmark" ] && "$root/.venv/bin/python" -I -c 'import pip' 2>/dev/null; then
        rm -f "$root/.venv/.guestmark" # complete for another lock: brought up to date in place
    else
        rm -rf "$root/.venv"
        step "making the Python environment" "$python" -m venv "$root/.venv"
        # Up to Python 3.11 an environment comes with setuptools, which nothing here needs.
        "$root/.venv/bin/python" -B -m pip --quiet uninstall --yes setuptools >>"$log" 2>&1 || :
        find "$root/.venv/lib" -type d -name __pycache__ -path '*/pip/*' -prune -exec rm -rf {} +
    fi
    install_locked "installing the Python dependencies" venv
    # Relative, so that the checkout can be moved.
    for site in "$root"/.venv/lib/python3*/site-packages; do
        write_file "$site/guestmark-src.pth" ../../../../python
    done
    write_file "$root/.venv/.guestmark" "$key"
}

# The user's own flags would replace those in .cargo/config.toml, and with them the static linking.
build() { # WHAT PROGRAM OPTION…: sets $program, which is in target/
    what=$1 program=target/$2
    shift 2
    step "$what" sh -c 'cd "$0" && exec "$@"' "$root" env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS \
        "$cargo" build --locked --target "$(rust_host)" "$@"
    [ -x "$root/$program" ] || fail 3 "cargo built no $program" "the full log: $log"
}

# Built to be there soon (the profile `checkout`); the package's programs are built to be fast and small.
build_own() { # WHAT NAME OPTION…
    what=$1 name=$2
    shift 2
    build "$what" "$(rust_host)/checkout/$name" --profile checkout --package guestmark-agent --bin "$name" \
        --target-dir "$root/target" "$@"
}

make_agent() {
    key=$(agent_key)
    build_own "building the agent" guestmark-agent --no-default-features
    agent=$program
    write_file "$state/agent" "$program
$key"
}

make_capture() {
    key=$(capture_key)
    build_own "building the capture engine" guestmark-capture
    write_file "$state/capture" "$program
$key"
}

make_stacks() {
    key=$(stacks_key)
    build "building another network stack" "stacks/$(rust_host)/release/smoltcp-server" --release \
        --target-dir "$root/target/stacks" --manifest-path "$root/tests/stacks/smoltcp/Cargo.toml"
    write_file "$state/stacks" "$program
$key"
}

# What takes the network goes on beside what takes the processors.
make_beside() { # PARTS BUILDS
    $die_with_us sh -c 'root=$0 python=$1 die_with_us=$2 alone= step_pid= ticker=
        . "$root/tools/setup.sh"
        alone= log=$state/python.log
        : >"$log"
        trap "stop_step 143" INT TERM HUP
        for part in $3; do make "$part"; done' "$root" "$python" "$die_with_us" "$1" &
    beside=$!
    for build in $2; do make "$build"; done
    wait "$beside" || { beside='' && fail 3 "the Python environment is not complete" "the log: $state/python.log"; }
    beside=
}

# The manual page, where man looks for that of a program in PATH, and the completions of shells. Nothing needs them.
make_manual() {
    [ "$root/share/man/man1/guestmark.1" -nt "$root/python/guestmark/cli" ] ||
        (cd "$root" && PYTHONPATH=python .venv/bin/python -m tools.manual "$root") >>"$log" 2>&1 || true
}

# What ./test needs besides. A program that cannot be had makes the check or the tests that need it fail.
dev_ready() { part_ready dev && [ -d /lib/modules ] && [ -z "$(missing_dev)" ]; }

# The other parts of the environment: `dev`, `fleet` (the engine of `guestmark fleet`), `history` (change points) and
# `frames` (polars, for data frames). The program asks for the last three when it first needs them.
part_ready() { holds "$root/.venv/.guestmark-$1" "$(part_key "$1")"; } # PART

make_part() { # PART
    rm -f "$root/.venv/.guestmark-$1"
    case $1 in
        dev) install_locked "installing the Python tools for the checks" dev ;;
        fleet) install_locked "installing the engine of fleets" fleet ;;
        # Without what it names itself: it pins versions of NumPy and SciPy, and most of the others are for reading from
        # databases and writing to chats.
        history) install_locked "installing Apache Otava" history --no-deps ;;
        frames) install_locked "installing polars for data frames" frames ;;
    esac
    write_file "$root/.venv/.guestmark-$1" "$(part_key "$1")"
}

make() { # PART
    case $1 in
        venv | agent | capture | stacks) "make_$1" ;;
        *) make_part "$1" ;;
    esac
}

all_ready() {
    venv_ready && agent_ready && { [ -z "$want_capture" ] || capture_ready; } || return 1
    [ "$want_dev" != long ] || stacks_ready || return 1
    for part in $want_parts; do
        if [ "$part" = dev ]; then dev_ready; else part_ready "$part"; fi || return 1
    done
}

stamp() { # as old as the beginning of set-up
    printf '%s\n' "$agent" >"$state/stamp.$$" && touch -r "$state/begin.$$" "$state/stamp.$$" &&
        mv -f "$state/stamp.$$" "$state/stamp" 2>/dev/null
    rm -f "$state/begin.$$"
    # Newer than the lock: the launcher need not ask again.
    for part in $want_parts; do touch "$root/.venv/.guestmark-$part"; done
}

# set_up [dev|long|fleet|history|frames|capture]: what the command line needs, and what is named besides: `dev` is for
# ./test, `long` for ./test --long. Returns at once when it is there.
set_up() {
    umask_before=$(umask)
    umask 022 # other users may use this checkout
    want_dev='' want_parts='' want_capture='' step_pid='' ticker='' die_with_us=
    case ${1:-} in
        dev | long) want_dev=$1 want_parts='dev fleet history' want_capture=yes ;;
        fleet | history | frames) want_parts=$1 ;;
        capture) want_capture=yes ;;
    esac
    # A capture engine that was built here once is kept up to date.
    ! capture_there || want_capture=yes
    if [ -w "$state" ]; then : >"$state/begin.$$"; fi
    if ! all_ready; then
        prepare
    elif [ -w "$state" ]; then
        stamp
    fi
    umask "$umask_before"
}

prepare() {
    if [ ! -w "$root" ] && [ -e "$root/.venv/.guestmark" ] && [ ! -x "$root/.venv/bin/python" ]; then
        fail 2 "the Python of this checkout, in $(sed -n 's/^home = //p' "$root/.venv/pyvenv.cfg"), is closed to this user" \
            "its owner can set it up anew with one that is open to all (rm -r $root/.venv; $root/guestmark), or make a checkout of your own"
    fi
    { mkdir -p "$state" && [ -w "$root" ] && [ -w "$state" ]; } 2>/dev/null ||
        fail 2 "set-up is not complete and this user cannot write to $root" "run $root/guestmark once as its owner"
    exec 9>>"$state/lock"
    if command -v flock >/dev/null && ! flock -n 9; then
        say "another set-up of this checkout is running; waiting for it"
        flock 9
    fi
    find "$state" \( -name 'begin.*' -o -name 'stamp.*' -o -name '*.new.*' \) ! -name "*.$$" -exec rm -f {} +
    : >"$state/begin.$$"
    trap 'stop_step 130' INT
    trap 'stop_step 143' TERM HUP
    if ! all_ready; then
        : >"$log"
        ! setpriv --pdeathsig TERM true 2>/dev/null || die_with_us='setpriv --pdeathsig TERM'
        say "setting up in $root; the log is .setup/setup.log"
        absent=$(missing)
        # shellcheck disable=SC2086
        [ -z "$absent" ] || install_packages $absent
        find_python || fail 2 "no Python >= $python_wanted with venv found" "install one, then start again"
        find_cargo || fail 2 "no Rust >= $rust_wanted found" "install a newer toolchain, then start again"
        if [ -n "$want_dev" ]; then
            absent=$(missing_dev)
            # shellcheck disable=SC2086
            [ -z "$absent" ] || install_packages $absent
            # supermin, which makes libguestfs's appliance, gives up without it; container images have none.
            [ -d /lib/modules ] || step_apt "making /lib/modules" $(as_root) mkdir -p /lib/modules
        fi
        parts='' builds=''
        venv_ready || parts=venv
        for part in $want_parts; do part_ready "$part" || parts="$parts $part"; done
        agent_ready || builds=agent
        [ -z "$want_capture" ] || capture_ready || builds="$builds capture"
        [ "$want_dev" != long ] || stacks_ready || builds="$builds stacks"
        if [ -n "$parts" ] && [ -n "$builds" ]; then
            make_beside "$parts" "$builds"
        else
            for part in $parts $builds; do make "$part"; done
        fi
        make_manual
        sync -f "$root" 2>/dev/null || sync # a power cut must not leave a stamp without what it stands for
    fi
    trap - INT TERM HUP
    stamp # before another set-up goes on, and removes what such a one left
    exec 9>&-
}
