//! Runs as PID 1: from the kernel's hand-over to serving the controller with as few system calls as possible.
//!
//! Options on the kernel's command line:
//! - `guestmark.channel=virtio:NAME` (a virtio-serial port by name), `vsock:PORT` (of the hypervisor) or a terminal's
//!   path, for instance `/dev/ttyS0`;
//! - `guestmark.root=9p:TAG`, `vsock:PORT` (9p as well), `virtiofs:TAG`, `hostfs:DIRECTORY` or `none` (stay in the
//!   initramfs, the default);
//! - `guestmark.rootopts=` options for mounting that root;
//! - `guestmark.overlay=` size of the throw-away layer over it (as tmpfs's `size=`, default `50%`);
//! - `guestmark.template=1`: before mounting the root, waits for the renewal (see [`await_renewal`]): the machine may be
//!   saved at this point and continue as any number of clones;
//! - `guestmark.realtime=` seconds since 1970 at the start of the machine, for machines without a clock that keeps the
//!   date;
//! - `GUESTMARK_MARKS=1` (an environment variable of PID 1, so that it is known before `/proc` is mounted): prints a
//!   line on the console at the end of each step, so that a reader of the console can time it.
//!
//! `/guestmark/modules` in the initramfs lists kernel modules to load, one path a line, in order; a leading `-` marks
//! one whose failure is not fatal.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use guestmark_wire::Phase;
use rustix::mount::MountFlags;

use crate::channel::{self, Channel};
use crate::renewal::await_renewal;
use crate::serve::{self, End};
use crate::sys;

/// Runs as PID 1. Never returns: the machine is powered off at the end.
pub fn run() -> ! {
    if let Err(error) = boot_and_serve() {
        print_on_console(&error.to_string());
    }
    power_off()
}

/// Prints one line on the console.
fn print_on_console(message: &str) {
    if let Ok(mut console) = File::options().write(true).open("/dev/console") {
        let _ = console.write_all(format!("guestmark-agent: {message}\r\n").as_bytes());
    }
}

fn power_off() -> ! {
    rustix::fs::sync();
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    // The kernel cannot power the machine off. The exit of PID 1 makes it panic, which the host notices as well.
    std::process::exit(1)
}

fn boot_and_serve() -> io::Result<()> {
    let mut phases = Phases {
        ended: Vec::with_capacity(8),
        marks: std::env::var_os("GUESTMARK_MARKS").is_some(),
    };
    phases.mark_ended("kernel");
    let signals = sys::reset_and_block_signals(&[libc::SIGCHLD])?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", plain, "")?;
    mount("sysfs", "/sys", "sysfs", plain, "")?;
    mount(
        "devtmpfs",
        "/dev",
        "devtmpfs",
        MountFlags::NOSUID,
        "mode=755",
    )?;
    phases.mark_ended("mounts");
    let options = Options::parse(&fs::read_to_string("/proc/cmdline")?);
    set_clock(&options.realtime);
    load_modules()?;
    phases.mark_ended("modules");
    let old_root = File::open("/")?;
    let waited = options
        .template
        .then(|| wait_as_template(&options, &mut phases));
    let waited = waited.transpose()?;
    if options.root != "none" {
        mount_root(&options)?;
        phases.mark_ended("root");
        switch_root()?;
    }
    set_up_standard_environment(plain)?;
    phases.mark_ended("furnish");
    let channel = match waited {
        Some(channel) => channel,
        None => channel::open(&options.channel)?,
    };
    phases.mark_ended("channel");
    let stayed = options.root == "none";
    let finish = || {
        bring_up_loopback();
        if !stayed {
            remove_below(&old_root.into(), 0);
        }
    };
    match serve::serve(&channel, &signals, phases.ended, finish) {
        End::Gone | End::Left | End::PowerOff => Ok(()),
        End::Signal(signal) => Err(io::Error::other(format!("ended by signal {signal}"))),
        End::Broken(why) => Err(io::Error::other(why)),
    }
}

struct Phases {
    ended: Vec<Phase>,
    marks: bool,
}

impl Phases {
    fn mark_ended(&mut self, name: &str) {
        self.ended.push(Phase {
            name: name.to_owned(),
            at_ns: sys::monotonic_ns(),
        });
        if self.marks {
            print_on_console(&format!("{name} done"));
        }
    }
}

/// Our options on the kernel's command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    channel: String,
    root: String,
    rootopts: String,
    overlay: String,
    realtime: String,
    template: bool,
}

impl Options {
    fn parse(cmdline: &str) -> Self {
        let of = |name: &str, default: &str| {
            let mut words = cmdline.split_ascii_whitespace().filter_map(|word| {
                word.strip_prefix("guestmark.")?
                    .strip_prefix(name)?
                    .strip_prefix('=')
            });
            words.next_back().unwrap_or(default).to_owned()
        };
        Self {
            channel: of("channel", "virtio:guestmark"),
            root: of("root", "none"),
            rootopts: of("rootopts", ""),
            overlay: of("overlay", "50%"),
            realtime: of("realtime", ""),
            template: of("template", "") == "1",
        }
    }
}

/// Sets the machine's clock if it shows a time before the machine was started; does nothing without the permission.
fn set_clock(started: &str) {
    let Ok(started) = started.parse::<u64>() else {
        return;
    };
    let since = sys::monotonic_ns();
    if sys::clock_ns(rustix::time::ClockId::Realtime) / 1_000_000_000 < started {
        let now = rustix::time::Timespec {
            tv_sec: (started + since / 1_000_000_000) as i64,
            tv_nsec: (since % 1_000_000_000) as _,
        };
        let _ = rustix::time::clock_settime(rustix::time::ClockId::Realtime, now);
    }
}

/// Starts the resident program and lets the machine be saved; see [`await_renewal`].
fn wait_as_template(options: &Options, phases: &mut Phases) -> io::Result<Channel> {
    let channel = channel::open(&options.channel)?;
    start_resident()?;
    await_renewal(&channel)?;
    phases.mark_ended("renewed");
    Ok(channel)
}

/// The command line, one argument a line, of a program that is already running when the machine is saved.
const RESIDENT: &str = "/guestmark/resident/words";

/// Starts the resident program, if there is one, and waits for its first byte of output. It continues in all clones.
fn start_resident() -> io::Result<()> {
    let Ok(words) = fs::read_to_string(RESIDENT) else {
        return Ok(());
    };
    let mut words = words.lines();
    let program = words.next().unwrap_or_default();
    let mut resident = std::process::Command::new(program)
        .args(words)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .map_err(|error| sys::add_context(program, &error))?;
    let mut ready = [0];
    if let Some(mut output) = resident.stdout.take() {
        io::Read::read_exact(&mut output, &mut ready)
            .map_err(|error| sys::add_context(program, &error))?;
    }
    crate::reap::spare(resident.id() as libc::pid_t);
    Ok(())
}

fn mount(
    source: &str,
    target: &str,
    fstype: &str,
    flags: MountFlags,
    data: &str,
) -> io::Result<()> {
    let options = sys::make_cstring(data.as_bytes())?;
    rustix::mount::mount(source, target, fstype, flags, options.as_c_str()).map_err(|error| {
        sys::add_context(format!("cannot mount {fstype} on {target}"), &error.into())
    })
}

fn load_modules() -> io::Result<()> {
    let Ok(list) = fs::read_to_string("/guestmark/modules") else {
        return Ok(());
    };
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (path, optional) = line
            .strip_prefix('-')
            .map_or((line, false), |path| (path, true));
        if let Err(error) = load_module(path) {
            let message = format!("cannot load module {path}: {error}");
            if !optional {
                return Err(io::Error::other(message));
            }
            print_on_console(&message);
        }
    }
    Ok(())
}

fn load_module(path: &str) -> io::Result<()> {
    /// `MODULE_INIT_COMPRESSED_FILE` of `linux/module.h`.
    const COMPRESSED: i32 = 4;
    let file = File::open(path)?;
    let flags = if std::path::Path::new(path)
        .extension()
        .is_some_and(|suffix| suffix == "ko")
    {
        0
    } else {
        COMPRESSED
    };
    match rustix::system::finit_module(&file, c"", flags) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

fn mount_root(options: &Options) -> io::Result<()> {
    for directory in [
        "/guestmark",
        "/guestmark/lower",
        "/guestmark/rw",
        "/guestmark/root",
    ] {
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(sys::add_context(directory, &error))
            }
            _ => {}
        }
    }
    let (kind, name) = options.root.split_once(':').unwrap_or((&options.root, ""));
    let rootopts = options.rootopts.as_str();
    // The kernel keeps using the connection for the mount.
    let server = (kind == "vsock")
        .then(|| channel::open_vsock(name))
        .transpose()?;
    let by_server = server.as_ref().map_or_else(String::new, |stream| {
        let descriptor = stream.as_raw_fd();
        format!("trans=fd,rfdno={descriptor},wfdno={descriptor},{rootopts}")
    });
    let (source, fstype, data) = match kind {
        "9p" if rootopts.is_empty() => (
            name,
            "9p",
            "trans=virtio,version=9p2000.L,msize=262144,cache=loose",
        ),
        "9p" => (name, "9p", rootopts),
        "vsock" => ("none", "9p", by_server.as_str()),
        "virtiofs" => (name, "virtiofs", rootopts),
        // hostfs takes the directory as its only data.
        "hostfs" => ("none", "hostfs", name),
        _ => {
            return Err(io::Error::other(format!(
                "guestmark.root={}: unknown kind of root",
                options.root
            )))
        }
    };
    mount(source, "/guestmark/lower", fstype, MountFlags::RDONLY, data)?;
    mount(
        "tmpfs",
        "/guestmark/rw",
        "tmpfs",
        MountFlags::empty(),
        &format!("size={},mode=755", options.overlay),
    )?;
    fs::create_dir("/guestmark/rw/upper")?;
    fs::create_dir("/guestmark/rw/work")?;
    let layers =
        "lowerdir=/guestmark/lower,upperdir=/guestmark/rw/upper,workdir=/guestmark/rw/work";
    mount(
        "overlay",
        "/guestmark/root",
        "overlay",
        MountFlags::empty(),
        layers,
    )
}

/// Makes the overlay the root, as `switch_root` does, and takes `/proc`, `/sys` and `/dev` along.
fn switch_root() -> io::Result<()> {
    for directory in ["/proc", "/sys", "/dev"] {
        let target = format!("/guestmark/root{directory}");
        let mut moved = rustix::mount::mount_move(directory, target.as_str());
        // Every path lookup goes to the host, so create the directory only if it turns out to be missing.
        if moved == Err(rustix::io::Errno::NOENT) {
            fs::create_dir(&target).map_err(|error| sys::add_context(&target, &error))?;
            moved = rustix::mount::mount_move(directory, target.as_str());
        }
        moved
            .map_err(|error| sys::add_context(format!("cannot move {directory}"), &error.into()))?;
    }
    std::env::set_current_dir("/guestmark/root")?;
    rustix::mount::mount_move(".", "/")
        .map_err(|error| sys::add_context("cannot move the root", &error.into()))?;
    std::os::unix::fs::chroot(".")?;
    std::env::set_current_dir("/")
}

/// Creates the files and mounts that programs rely on, and sets the host name, the umask and the limit on open files.
fn set_up_standard_environment(plain: MountFlags) -> io::Result<()> {
    let _ = fs::create_dir("/dev/pts");
    let _ = fs::create_dir("/dev/shm");
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    mount(
        "devpts",
        "/dev/pts",
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        "gid=5,mode=620,ptmxmode=666",
    )?;
    mount("tmpfs", "/dev/shm", "tmpfs", safe, "mode=1777")?;
    let _ = fs::create_dir("/run");
    mount(
        "tmpfs",
        "/run",
        "tmpfs",
        safe | (plain & MountFlags::NOSUID),
        "mode=755",
    )?;
    let links = [
        ("/proc/self/fd", "/dev/fd"),
        ("fd/0", "/dev/stdin"),
        ("fd/1", "/dev/stdout"),
        ("fd/2", "/dev/stderr"),
    ];
    for (target, link) in links {
        let _ = std::os::unix::fs::symlink(target, link);
    }
    let _ = std::os::unix::fs::symlink("pts/ptmx", "/dev/ptmx");
    rustix::system::sethostname(b"guestmark")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let files = rustix::process::Rlimit {
        current: Some(1024),
        maximum: Some(1 << 20),
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, files);
    Ok(())
}

/// Brings up the loopback interface of this process's network namespace.
pub fn bring_up_loopback() {
    // SAFETY: plain system calls; `request` is fully initialised and outlives them.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            // The kernel has no networking, so there is nothing to bring up.
            return;
        }
        let mut request = std::mem::zeroed::<libc::ifreq>();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
        libc::close(socket);
    }
}

/// Removes the files of the initramfs, which no path reaches any more, to free their memory.
fn remove_below(directory: &OwnedFd, depth: u32) {
    use rustix::fs::{openat, unlinkat, AtFlags, Dir, FileType, Mode, OFlags};
    let Ok(entries) = Dir::read_from(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory && depth < 16 {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(inner) = openat(directory, name, flags, Mode::empty()) {
                // Another device means that something is mounted here, which must not be emptied.
                let same = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| stat.st_dev).ok();
                if same(&inner) == same(directory) {
                    remove_below(&inner, depth + 1);
                }
            }
            let _ = unlinkat(directory, name, AtFlags::REMOVEDIR);
        } else {
            let _ = unlinkat(directory, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn options_are_found_among_others_and_the_last_one_counts() {
        let options = Options::parse(
            "quiet guestmark.root=9p:r guestmark.root=9p:root xguestmark.root=no guestmark.rootopts=a=b,c\n",
        );
        assert_eq!(options.root, "9p:root");
        assert_eq!(options.rootopts, "a=b,c");
        assert_eq!(options.channel, "virtio:guestmark");
        assert_eq!(options.overlay, "50%");
        assert_eq!(options.realtime, "");
    }
}
