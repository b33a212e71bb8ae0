# Fresh Debian roots, for the tools that make some; sourced by them. POSIX sh.
# Package sources, certificates and pip's network settings are those of this machine.

# root_tools NAME PROGRAM…: stops NAME where it cannot work.
root_tools() {
    root_for=$1
    shift
    [ "$(id -u)" -eq 0 ] || { echo "$root_for: must be root, to make a root file system" >&2 && exit 2; }
    for program in mmdebstrap "$@"; do
        command -v "$program" >/dev/null || { echo "$root_for: $program is missing" >&2 && exit 2; }
    done
}

suite_here() { (. /etc/os-release && echo "$VERSION_CODENAME"); }

# root_sources SUITE FOLDER: writes sources and acquire.conf there, this machine's with the suite exchanged.
root_sources() {
    apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) main' \
        'Origin: Debian' 'Created-By: Packages' | sort -u |
        sed "s/ $(suite_here)\\(-[a-z]*\\)\\{0,1\\} main\$/ $1\\1 main/" >"$2/sources"
    apt-config dump | grep '^Acquire::' | grep -v -e '^Acquire::Changelogs' -e 'Retries::' >"$2/acquire.conf" || :
    [ -s "$2/sources" ] || { echo "no Debian package sources on this machine" >&2 && exit 2; }
}

# root_make SUITE ROOT FOLDER PACKAGES [OPTION…]: a minimal root. It is made in namespaces of its own, so an interruption leaves
# nothing mounted.
root_make() {
    root_suite=$1 root_target=$2 root_folder=$3 root_packages=$4
    shift 4
    echo "making a minimal $root_suite root"
    unshare --mount --pid --fork --kill-child --mount-proc mmdebstrap --quiet --mode=root --variant=minbase \
        --include="$root_packages" --aptopt="$root_folder/acquire.conf" "$@" "$root_suite" "$root_target" "$root_folder/sources"
}

# root_network ROOT: lets programs in it reach what those of this machine do; they find pip's settings in /root/network.
root_network() {
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$1/etc/"
    cp -R /usr/local/share/ca-certificates/. "$1/usr/local/share/ca-certificates/" 2>/dev/null || :
    env -u TMPDIR chroot "$1" update-ca-certificates >/dev/null 2>&1 || :
    env | sed -n 's/^\(PIP_[A-Z_]*\|[a-z]*_proxy\|SSL_CERT_FILE\|REQUESTS_CA_BUNDLE\)=\(.*\)$/export \1="\2"/p' >"$1/root/network"
}
