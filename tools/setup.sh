# Set-up of a guestmark checkout; sourced by ./guestmark and ./test with $root set. POSIX sh.
#
#   .venv/             Python environment with the locked dependencies; .venv/.guestmark says from which lock
#                      (-dev, -fleet and -history: what the checks, fleets and change points need besides)
#   target/            the agent, built by cargo; .setup/agent says from which sources; .setup/capture the same of the
#                      capture engine, which is built when it is first used
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
rust_wanted=1.85
python_wanted=3.11

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

version_at_least() { # HAVE WANTED, of the form major.minor[.…]
    have_major=${1%%.*} have_minor=${1#*.}
    have_minor=${have_minor%%[!0-9]*}
    case $have_major$have_minor in '' | *[!0-9]*) return 1 ;; esac
    [ "$have_major" -gt "${2%%.*}" ] || { [ "$have_major" -eq "${2%%.*}" ] && [ "$have_minor" -ge "${2#*.}" ]; }
}

# ---- steps -----------------------------------------------------------------------------------------------------

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

# ---- what is there, what is missing ----------------------------------------------------------------------------

find_python() { # sets $python to a real interpreter (not a shim, not a link that an upgrade turns elsewhere)
    closed=
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 /usr/bin/python3; do
        python=$("$candidate" -c 'import os, sys, venv, ensurepip
ok = sys.version_info >= (3, 11)
print(os.path.realpath(sys._base_executable) if ok else "")' 2>/dev/null) && [ -n "$python" ] || continue
        # What root sets up others use, too: an interpreter below /root would be closed to them.
        if [ "$(id -u)" -ne 0 ] || open_to_all "$python"; then
            return
        fi
        closed=${closed:-$python}
    done
    python=$closed
    [ -n "$python" ]
}

open_to_all() { # PATH: whether every user can execute it
    case $(stat -L -c %A "$1" 2>/dev/null) in *[xt]) ;; *) return 1 ;; esac
    [ "$1" = / ] || open_to_all "$(dirname "$1")"
}

find_cargo() { # sets $cargo, and puts its directory first in PATH so that its own rustc is used
    for cargo in "$(command -v cargo)" "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/cargo" /usr/bin/cargo; do
        [ -x "$cargo" ] || continue
        rustc=${cargo%/*}/rustc
        [ -x "$rustc" ] || rustc=rustc
        version_at_least "$("$cargo" --version 2>/dev/null | cut -d' ' -f2)" $rust_wanted || continue
        version_at_least "$("$rustc" --version 2>/dev/null | cut -d' ' -f2)" $rust_wanted || continue
        PATH=${cargo%/*}:$PATH
        return
    done
    cargo=
    return 1
}

rust_host() { "$rustc" -vV | sed -n 's/^host: //p'; } # after find_cargo

# The agent is linked statically: a compiler driver and the static C library.
find_linker() {
    libc=$(cc -print-file-name=libc.a 2>/dev/null) && [ -f "$libc" ]
}

# Lists what is missing, one name of the table below a line.
missing() {
    machine=$(uname -m)
    case $machine in
        aarch64) command -v qemu-system-aarch64 >/dev/null || echo qemu-arm ;;
        *) command -v qemu-system-x86_64 >/dev/null || echo qemu ;;
    esac
    command -v qemu-img >/dev/null || echo qemu-img
    [ "$machine" = aarch64 ] || command -v linux.uml >/dev/null || echo uml # there is none for it
    command -v sysbench >/dev/null || echo sysbench
    (PATH=$PATH:/usr/sbin:/sbin && command -v mke2fs >/dev/null) || echo mke2fs
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] ||
        [ -e /etc/ssl/ca-bundle.pem ] || [ -e /etc/ssl/cert.pem ] || echo ca
    find_linker || echo linker
    find_python || echo python
    find_cargo || echo cargo
}

why() {
    case $1 in
        qemu | qemu-arm) echo "runs the tcg and kvm guests" ;;
        qemu-img) echo "makes and checks disk images" ;;
        uml) echo "the User-Mode Linux kernel of uml guests" ;;
        sysbench) echo "the reference workload" ;;
        mke2fs) echo "makes file systems on disk images" ;;
        ca) echo "lets pip and cargo check whom they download from" ;;
        linker) echo "links the agent, statically" ;;
        python) echo "the tool is written in Python (at least $python_wanted, with venv)" ;;
        rustfmt) echo "checks the Rust sources' format" ;;
        clippy) echo "checks the Rust sources" ;;
        rust-src) echo "Rust's library, compiled for the agent's other architectures" ;;
        zstd) echo "compresses captures" ;;
        tshark | tcptrace) echo "reads the captures that ours are compared with" ;;
        strace) echo "sees whether a flush of UML reaches the host" ;;
        guestfish) echo "is measured beside guestmark, as a peer" ;;
        ovmf) echo "the UEFI firmware of network boots" ;;
        chromium) echo "looks at the pages that are made" ;;
        mkfs.*) echo "makes file systems on disk images" ;;
        mariadbd | my_print_defaults) echo "is measured as a database server, and asked about" ;;
        fio) echo "is measured as a workload" ;;
        hyperfine) echo "has its options and tables compared with guestmark's" ;;
        bwrap | crun | runc | podman | runsc) echo "is measured as a sandbox" ;;
        virsh) echo "is asked about domains of libvirt" ;;
        zsh | fish) echo "completes command lines" ;;
        sshd) echo "answers the tests on a port of their own; its service is masked, so that none starts here" ;;
        tmux) echo "is the terminal of the tests" ;;
        mksquashfs) echo "makes read-only images" ;;
        liblwip-dev) echo "is another stack than Linux's, whose captures are examined" ;;
        ip) echo "makes the network namespaces of the tests" ;;
        qemu-user-static) echo "runs programs of other architectures" ;;
        mmdebstrap) echo "makes the fresh Debian root in which set-up is tested" ;;
        cargo) echo "builds the agent (Rust, at least $rust_wanted)" ;;
    esac
}

# package NAME FAMILY: the distribution's packages for it, by the table that the program itself uses.
package() {
    case $2:$1 in
        debian:cargo) debian_rust ;;
        debian:rustfmt) debian_rust_tool rustfmt rustfmt-web ;;
        debian:clippy) debian_rust_tool rust-clippy rust-web-clippy ;;
        debian:rust-src) # of the distribution's own compiler, whichever compiles the rest
            rust=$(debian_rust)
            case $rust in *-web*) echo "$rust rust-web-src" ;; *) echo "$rust rust-src" ;; esac
            ;;
        other:python) echo "python (at least $python_wanted)" ;;
        *) packaged "$1" "$2" ;;
    esac
}

packaged() { # NEED FAMILY
    found=$1
    while IFS='	' read -r need debian fedora rhel arch suse alpine nixos; do
        [ "$need" = "$1" ] || continue
        case $2 in
            fedora) found=$fedora ;;
            rhel) found=$rhel ;;
            arch) found=$arch ;;
            suse) found=$suse ;;
            alpine) found=$alpine ;;
            nixos) found=$nixos ;;
            *) found=$debian ;;
        esac
    done <"$root/python/guestmark/core/packages.tsv"
    [ "$found" != - ] || return 0
    (IFS=, && set -f && set -- $found && IFS=' ' && echo "$*")
}

# Debian 13 and later have a new enough `cargo`; Debian 12 keeps one as `cargo-web`.
debian_rust() {
    for names in "cargo rustc" "cargo-web rustc-web"; do
        candidate=$(LC_ALL=C apt-cache policy "${names%% *}" 2>/dev/null | sed -n 's/^ *Candidate: //p')
        if version_at_least "$candidate" $rust_wanted; then
            echo "$names"
            return
        fi
    done
    case $(. /etc/os-release && echo "${VERSION_CODENAME:-}") in # package lists not fetched yet
        bookworm) echo cargo-web rustc-web ;;
        *) echo cargo rustc ;;
    esac
}

debian_rust_tool() { if dpkg -s cargo-web >/dev/null 2>&1; then echo "$2"; else echo "$1"; fi; }

family() {
    # shellcheck disable=SC1091
    for id in $(. /etc/os-release 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}"); do
        case $id in
            debian | ubuntu) echo debian ;;
            rhel | centos) echo rhel ;;
            fedora) echo fedora ;;
            nixos) echo nixos ;;
            arch) echo arch ;;
            suse | opensuse*) echo suse ;;
            alpine) echo alpine ;;
            *) continue ;;
        esac
        return
    done
    echo other
}

install_command() {
    case $1 in
        debian) echo apt-get install --no-install-recommends ;;
        fedora | rhel) echo dnf install ;;
        nixos) echo nix-shell -p ;;
        arch) echo pacman -S --needed ;;
        suse) echo zypper install ;;
        alpine) echo apk add ;;
        *) echo "your package manager's install command with:" ;;
    esac
}

as_root() { [ "$(id -u)" -eq 0 ] || echo sudo; }

may_install() { # sets $may to yes or no, and $become to what has to stand before apt-get
    become=
    command -v apt-get >/dev/null && may=yes || may=no
    if [ "$(id -u)" -ne 0 ]; then
        become='sudo '
        if ! command -v sudo >/dev/null; then may=no; elif [ ! -t 0 ] && ! sudo -n true 2>/dev/null; then may=no; fi
    fi
}

fetch_lists() { # once
    [ -z "${fetched:-}" ] || return 0
    step_apt "fetching package lists" ${become:+sudo} apt-get -q update
    fetched=yes
}

apt_install() { # PACKAGE…: those that were not there before are remembered for `guestmark clean --all`
    fresh=
    for each in "$@"; do
        case $(dpkg-query -W -f='${Status}' "$each" 2>/dev/null) in
            *' installed') ;;
            *) fresh="$fresh $each" ;;
        esac
    done
    [ -z "$(dpkg --audit 2>/dev/null)" ] ||
        step_apt "finishing an interrupted package installation" ${become:+sudo} dpkg --configure -a
    step_apt "installing these packages" ${become:+sudo} env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get \
        -qy -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 --no-remove --no-install-recommends install "$@"
    # shellcheck disable=SC2086
    [ -z "$fresh" ] || printf '%s\n' $fresh >>"$state/packages"
}

# install_named PACKAGE…: for what the program finds missing later (foreign/installing.py). Ends with 2 where it may not.
install_named() {
    may_install
    [ "$(family)" = debian ] && [ "$may" = yes ] || exit 2
    fetch_lists
    apt_install "$@"
}

# install_packages NAME…: has the system's packages installed, or says how and stops.
install_packages() {
    family=$(family)
    [ "$family" = debian ] || { # no UML package elsewhere: that platform stays unusable, the rest works
        kept=
        for name in "$@"; do
            if [ "$name" = uml ]; then
                say "no User-Mode Linux kernel here (not packaged outside Debian): the platform uml will be unusable"
            else kept="$kept $name"; fi
        done
        # shellcheck disable=SC2086
        set -- $kept
        [ $# -gt 0 ] || return 0
    }
    may_install
    if [ "$family" = debian ] && [ "$may" = yes ]; then
        fetch_lists
    fi
    packages=
    say "missing on this system:"
    for name in "$@"; do
        names=$(package "$name" "$family")
        printf '  %-26s %s\n' "$names" "$(why "$name")" >&2
        packages="$packages $names"
    done
    if [ "$family" != debian ] || [ "$may" = no ]; then
        [ "$family" = other ] || command="$become$(install_command "$family")$packages"
        [ "$family" != other ] || command="the packages above, with your package manager"
        fail 2 "these packages must be installed first" "as root: ${command#sudo }" "then start again"
    fi
    case " $packages " in *" openssh-server "*) mask ssh.service ;; esac
    # shellcheck disable=SC2086
    apt_install $packages
}

mask() { # UNIT, of a package that is not installed yet: installing it would start it
    ${become:+sudo} mkdir -p /etc/systemd/system
    [ -e "/etc/systemd/system/$1" ] || ${become:+sudo} ln -s /dev/null "/etc/systemd/system/$1"
}

# ---- the parts -------------------------------------------------------------------------------------------------

key_of() { # FILE…: one hash over names and contents, independent of where the checkout is and of file times
    (cd "$root" && find "$@" -type f -exec sha256sum {} + | LC_ALL=C sort | sha256sum | cut -d' ' -f1)
}
venv_key() { key_of requirements.txt; }
dev_key() { key_of requirements.txt requirements-dev.txt requirements-frames.txt; }
fleet_key() { key_of requirements.txt requirements-fleet.txt; }
history_key() { key_of requirements-history.txt; }
library_key() { key_of "requirements-$1.txt"; }
agent_key() { key_of Cargo.toml Cargo.lock .cargo crates/agent crates/wire; }
capture_key() { key_of Cargo.toml Cargo.lock .cargo crates; }
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

# Modules that no start imports: compiled they would take 20 MB.
seldom='/site-packages/(pip|pygments/(lexers|styles)|numpy/(distutils|f2py|typing)|sqlalchemy/(ext|orm|testing))/'

pip_install() { # WHAT PIP-ARGS…: exactly what the locks name, nothing built from source
    what=$1
    shift
    step "$what" env -u PIP_TARGET -u PIP_PREFIX PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$root/.venv/bin/python" -B -m pip install --quiet --no-compile --require-hashes --only-binary :all: "$@"
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
    pip_install "installing the Python dependencies" -r "$root/requirements.txt"
    # Relative, so that the checkout can be moved.
    for site in "$root"/.venv/lib/python3*/site-packages; do
        write_file "$site/guestmark-src.pth" ../../../../python
    done
    write_file "$root/.venv/.guestmark" "$key"
}

# Built to be there soon (the profile `checkout`); the package's programs are built to be fast and small.
build() { # WHAT NAME OPTION…: sets $program
    what=$1 name=$2
    shift 2
    host=$(rust_host)
    program=target/$host/checkout/$name
    # The user's own flags would replace those in .cargo/config.toml, and with them the static linking.
    step "$what" sh -c 'cd "$0" && exec "$@"' "$root" env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS \
        "$cargo" build --profile checkout --locked --package guestmark-agent --bin "$name" --target "$host" \
        --target-dir "$root/target" "$@"
    [ -x "$root/$program" ] || fail 3 "cargo built no $program" "the full log: $log"
}

make_agent() {
    key=$(agent_key)
    build "building the agent" guestmark-agent --no-default-features
    agent=$program
    write_file "$state/agent" "$program
$key"
}

make_capture() {
    key=$(capture_key)
    build "building the capture engine" guestmark-capture
    write_file "$state/capture" "$program
$key"
}

# What takes the network goes on beside what takes the processors.
make_beside() { # PYTHON-STEPS BUILDS: functions
    $die_with_us sh -c 'root=$0 python=$1 die_with_us=$2 alone= step_pid= ticker=
        . "$root/tools/setup.sh"
        alone= log=$state/python.log
        : >"$log"
        trap "stop_step 143" INT TERM HUP
        for each in $3; do "$each"; done' "$root" "$python" "$die_with_us" "$1" &
    beside=$!
    for each in $2; do "$each"; done
    wait "$beside" || { beside='' && fail 3 "the Python environment is not complete" "the log: $state/python.log"; }
    beside=
}

# The manual page, where man looks for that of a program in PATH, and the completions of shells. Nothing needs them.
make_manual() {
    [ "$root/share/man/man1/guestmark.1" -nt "$root/python/guestmark/cli" ] ||
        PYTHONPATH=$root/python "$root/.venv/bin/python" "$root/tools/manual.py" "$root" >>"$log" 2>&1 || true
}

# What ./test needs besides. A program that cannot be had makes the check or the tests that need it fail.
dev_ready() { holds "$root/.venv/.guestmark-dev" "$(dev_key)" && [ -d /lib/modules ] && [ -z "$(missing_dev)" ]; }

missing_dev() {
    find_cargo
    "$cargo" fmt --version >/dev/null 2>&1 || echo rustfmt
    "$cargo" clippy --version >/dev/null 2>&1 || echo clippy
    for place in "$("$rustc" --print sysroot)" /usr; do
        [ ! -e "$place/lib/rustlib/src/rust/library/std/Cargo.toml" ] || break
    done
    [ -e "$place/lib/rustlib/src/rust/library/std/Cargo.toml" ] || echo rust-src
    for program in $test_programs; do
        command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || echo "$program"
    done
    [ -d /usr/share/OVMF ] || [ -d /usr/share/edk2 ] || echo ovmf
    [ "$want_dev" = long ] || return 0
    command -v mmdebstrap >/dev/null || echo mmdebstrap
    [ -e /usr/include/lwip/lwip/tcpip.h ] || echo liblwip-dev
    # Programs of other architectures: those of the tests are arm64's.
    command -v qemu-aarch64-static >/dev/null || command -v qemu-aarch64 >/dev/null || echo qemu-user-static
}

# What the tests compare with, look at pages with, make file systems with, or measure.
test_programs="tshark tcptrace chromium mkfs.xfs mkfs.btrfs strace ip guestfish mariadbd my_print_defaults fio
virsh zsh fish zstd tmux mksquashfs bwrap crun runc podman runsc sshd hyperfine"

make_dev() {
    holds "$root/.venv/.guestmark-dev" "$(dev_key)" && return
    rm -f "$root/.venv/.guestmark-dev"
    pip_install "installing the Python tools for the checks" -r "$root/requirements.txt" \
        -r "$root/requirements-dev.txt" -r "$root/requirements-frames.txt"
    write_file "$root/.venv/.guestmark-dev" "$(dev_key)"
}

# The engine of `guestmark fleet`, and whatever else its extra in pyproject.toml names.
fleet_ready() { holds "$root/.venv/.guestmark-fleet" "$(fleet_key)"; }

make_fleet() {
    rm -f "$root/.venv/.guestmark-fleet"
    pip_install "installing the engine of fleets" -r "$root/requirements.txt" -r "$root/requirements-fleet.txt"
    write_file "$root/.venv/.guestmark-fleet" "$(fleet_key)"
}

# The change points of `guestmark history`. Without the dependencies that its package names: it pins versions of NumPy and
# SciPy, and most of the others are for reading from databases and writing to chats.
history_ready() { holds "$root/.venv/.guestmark-history" "$(history_key)"; }

make_history() {
    rm -f "$root/.venv/.guestmark-history"
    pip_install "installing Apache Otava" --no-deps --retries 1 -r "$root/requirements-history.txt"
    write_file "$root/.venv/.guestmark-history" "$(history_key)"
}

# What only data frames (polars) need; the program asks for it when it first makes one.
library_ready() { holds "$root/.venv/.guestmark-$1" "$(library_key "$1")"; }

make_library() {
    rm -f "$root/.venv/.guestmark-$1"
    pip_install "installing what $1 need" --retries 1 -r "$root/requirements-$1.txt"
    write_file "$root/.venv/.guestmark-$1" "$(library_key "$1")"
}

all_ready() {
    # A capture engine that was built here once is kept up to date.
    venv_ready && agent_ready && { { [ -z "$want_capture$want_dev" ] && ! capture_there; } || capture_ready; } &&
        { [ -z "$want_dev" ] || dev_ready; } && { [ -z "$want_fleet" ] || fleet_ready; } &&
        { [ -z "$want_history" ] || history_ready; } && { [ -z "$want_library" ] || library_ready "$want_library"; }
}

stamp() { # as old as the beginning of set-up
    printf '%s\n' "$agent" >"$state/stamp.$$" && touch -r "$state/begin.$$" "$state/stamp.$$" &&
        mv -f "$state/stamp.$$" "$state/stamp"
    rm -f "$state/begin.$$"
    # Newer than the locks: the launcher need not ask again.
    [ -z "$want_fleet" ] || touch "$root/.venv/.guestmark-fleet"
    [ -z "$want_history" ] || touch "$root/.venv/.guestmark-history"
}

# set_up [dev|long|fleet|history|capture|frames]: everything the command line needs (or ./test, or a fleet, or change points,
# or captures, or frames); returns at once when it is there.
set_up() {
    umask_before=$(umask)
    umask 022 # other users may use this checkout
    want_dev=${1:-} want_fleet=${1:-} want_history=${1:-} want_capture='' want_library='' step_pid='' ticker='' die_with_us=
    case ${1:-} in
        fleet) want_dev='' want_history='' ;;
        history) want_dev='' want_fleet='' ;;
        capture) want_dev='' want_fleet='' want_history='' want_capture=yes ;;
        frames) want_dev='' want_fleet='' want_history='' want_library=$1 ;;
    esac
    if [ -w "$state" ]; then : >"$state/begin.$$"; fi
    if ! all_ready; then
        prepare
    fi
    [ ! -w "$state" ] || stamp
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
        steps='' builds=''
        venv_ready || steps=make_venv
        [ -z "$want_dev" ] || steps="$steps make_dev"
        [ -z "$want_fleet" ] || fleet_ready || steps="$steps make_fleet"
        [ -z "$want_history" ] || history_ready || steps="$steps make_history"
        agent_ready || builds=make_agent
        if [ -n "$want_capture$want_dev" ] || capture_there; then capture_ready || builds="$builds make_capture"; fi
        if [ -n "$steps" ] && [ -n "$builds" ]; then
            make_beside "$steps" "$builds"
        else
            for each in $steps $builds; do "$each"; done
        fi
        [ -z "$want_library" ] || library_ready "$want_library" || make_library "$want_library"
        make_manual
        sync -f "$root" 2>/dev/null || sync # a power cut must not leave a stamp without what it stands for
    fi
    trap - INT TERM HUP
    exec 9>&-
}
