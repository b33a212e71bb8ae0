# Programs that come from the system: which are missing, what the distribution's packages for them are called, and how
# they are installed. Sourced by tools/setup.sh. POSIX sh.

rust_wanted=1.85
python_wanted=3.11

version_at_least() { # HAVE WANTED, of the form major.minor[.…]
    have_major=${1%%.*} have_minor=${1#*.}
    have_minor=${have_minor%%[!0-9]*}
    case $have_major$have_minor in '' | *[!0-9]*) return 1 ;; esac
    [ "$have_major" -gt "${2%%.*}" ] || { [ "$have_major" -eq "${2%%.*}" ] && [ "$have_minor" -ge "${2#*.}" ]; }
}

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

# What the tests compare with, look at pages with, make file systems with, or measure.
test_programs="tshark tcptrace chromium mkfs.xfs mkfs.btrfs strace ip guestfish mariadbd my_print_defaults fio
virsh zsh fish zstd tmux mksquashfs bwrap crun runc podman runsc sshd hyperfine passt slirp4netns"

# The same of what the checks need besides; `long` of those of a release.
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
    [ -d /usr/lib/grub/i386-pc ] || echo grub-pc-bin
    [ -d /usr/lib/grub/x86_64-efi ] || echo grub-efi-amd64-bin
    command -v mcopy >/dev/null || echo mtools
    for tool in mkfs.nilfs2:nilfs-tools mkfs.jfs:jfsutils mkfs.erofs:erofs-utils ethtool:ethtool nginx:nginx wrk:wrk \
        redis-server:redis-server libvirtd:libvirt-daemon slurmctld:slurmctld slurmd:slurmd munged:munge \
        gtlsclient:ngtcp2-client gtlsserver:ngtcp2-server slirp-fullbolt:slirp \
        arch-test:arch-test; do
        command -v "${tool%:*}" >/dev/null || [ -x "/usr/sbin/${tool%:*}" ] || [ -x "/sbin/${tool%:*}" ] || echo "${tool#*:}"
    done
    [ -e /usr/lib/ipxe/ipxe.lkrn ] || echo ipxe
    [ -e /usr/share/AAVMF/AAVMF_CODE.fd ] || echo qemu-efi-aarch64
    # Of the distribution's own interpreter, whose programs are measured.
    for module in dbm.gnu:python3-gdbm plyvel:python3-plyvel bsddb3:python3-bsddb3; do
        /usr/bin/python3 -I -c "import ${module%:*}" 2>/dev/null || echo "${module#*:}"
    done
    [ -e /usr/include/lwip/lwip/tcpip.h ] || echo liblwip-dev
    # Programs of other architectures: those of the tests are arm64's.
    command -v qemu-aarch64-static >/dev/null || command -v qemu-aarch64 >/dev/null || echo qemu-user-static
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
        passt | slirp4netns | slirp) echo "joins machines to their network" ;;
        virsh) echo "is asked about domains of libvirt" ;;
        zsh | fish) echo "completes command lines" ;;
        sshd) echo "answers the tests on a port of their own; its service is masked, so that none starts here" ;;
        tmux) echo "is the terminal of the tests" ;;
        mksquashfs) echo "makes read-only images" ;;
        liblwip-dev) echo "is another stack than Linux's, whose captures are examined" ;;
        nilfs-tools | jfsutils | erofs-utils) echo "makes file systems on disk images" ;;
        ethtool) echo "sees what guestmark says of network cards" ;;
        ipxe) echo "boots from a network" ;;
        nginx | wrk) echo "is measured as a service; nginx's own is masked, so that none starts here" ;;
        libvirt-daemon) echo "has a private instance whose domains are measured; the system's own is masked" ;;
        slurm* | munge) echo "queues the blocks of a test; the system's own services are masked" ;;
        redis-server) echo "is a server whose power is cut; its service is masked, so that none starts here" ;;
        python3-*) echo "is a store of data whose power is cut" ;;
        ngtcp2-*) echo "speaks QUIC, whose captures are examined" ;;
        ip) echo "makes the network namespaces of the tests" ;;
        qemu-user-static | arch-test) echo "runs programs of other architectures" ;;
        qemu-efi-*) echo "boots disk images of another architecture" ;;
        grub-* | mtools) echo "makes disk images that boot" ;;
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

# install_named PACKAGE…: for what the program finds missing later (foreign/commands.py). Ends with 2 where it may not.
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
    for started in openssh-server:ssh redis-server:redis-server nginx:nginx libvirt-daemon:libvirtd slurmctld:slurmctld \
        slurmd:slurmd munge:munge; do
        case " $packages " in *" ${started%:*} "*) mask "${started#*:}.service" ;; esac
    done
    # shellcheck disable=SC2086
    apt_install $packages
}

mask() { # UNIT, of a package that is not installed yet: installing it would start it
    ${become:+sudo} mkdir -p /etc/systemd/system
    [ -e "/etc/systemd/system/$1" ] || ${become:+sudo} ln -s /dev/null "/etc/systemd/system/$1"
}
