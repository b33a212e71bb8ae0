//! `guestmark-agent keep`: removes what a controller has created as soon as no process uses it any more.
//!
//! The controller names each path before it creates it, so everything that exists will be removed. Its supervisors hold
//! the lifeline too: the keeper acts when the last of them has exited.
//!
//! A keeper consists of two processes, because one may be killed or stopped. The first passes everything that it reads
//! on to the second. When the first has exited, the second takes its place and starts another second process; if the
//! first is alive but does not act, the second acts alone.
//!
//! If both were killed together with the controller, a supervisor that still holds the lifeline has the names in a file
//! and removes those paths after the last supervisor has ended everything else. If no supervisor holds it, the next
//! controller finds the file.
//!
//! A supervisor that is stopped when the controller ends would hold the lifeline forever, so it is continued. One that
//! hangs in an endless loop is killed. A process of the keeper that hangs is killed by the other one, which has done
//! the work by then.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use std::time::{Duration, Instant};

use lexopt::Arg;
use lexopt::ValueExt;

use crate::{reap, sys};

/// How long to wait for killed processes to leave their control group.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads records from the lifeline, `+PATH` and `-PATH`, each ending with a null byte. At its end, removes the paths
/// that were added and not withdrawn.
pub fn keep(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let lifeline = parse(arguments).map_err(|error| io::Error::other(error.to_string()))?;
    // No signal except SIGKILL may end this process before its work is done.
    let _signals = sys::reset_and_block_signals(&[])?;
    let mut kept = KeptPaths::default();
    let other = loop {
        match start_second(&mut kept, &lifeline)? {
            Role::First(told) => {
                read_lifeline(
                    &mut kept,
                    &lifeline,
                    told.as_ref().map(|second| &second.tell),
                );
                if lifeline.has_hung_up() {
                    break told.map(|second| second.pid);
                }
            }
            Role::Second(first) => break first,
        }
    };
    kept.remove_all();
    if let Some(pid) = other {
        let _ = sys::kill(pid, libc::SIGKILL);
    }
    Ok(ExitCode::SUCCESS)
}

/// How long the second process waits for the first one to do the work.
const PATIENCE_WITH_FIRST: Duration = Duration::from_secs(1);
/// How often holders of the lifeline are examined once the controller has exited.
const LOOK: Duration = Duration::from_millis(200);
/// A supervisor that is found running this many times in a row hangs: a working one sleeps in between.
const HANGS: u32 = 4;

/// The role of this process in its keeper, with what it knows about the other process.
enum Role {
    First(Option<Second>),
    /// Removes the remaining paths, unless the other process of the keeper has done so.
    Second(Option<libc::pid_t>),
}

struct Second {
    pid: libc::pid_t,
    tell: OwnedFd,
}

/// The pipe that the controller and its supervisors hold, and a descriptor that shows when the controller itself has
/// exited.
struct Lifeline {
    names: OwnedFd,
    controller: Option<OwnedFd>,
    /// Holders that were found running, and how often.
    running: RefCell<HashMap<libc::pid_t, u32>>,
}

impl Lifeline {
    fn has_hung_up(&self) -> bool {
        is_ready(&self.names, 0)
    }

    /// Waits for a message, or until all possible senders have exited.
    fn wait(&self) -> io::Result<()> {
        loop {
            let mut fds = [
                Some(self.names.as_raw_fd()),
                self.controller.as_ref().map(AsRawFd::as_raw_fd),
            ]
            .map(|fd| libc::pollfd {
                fd: fd.unwrap_or(-1),
                events: libc::POLLIN,
                revents: 0,
            });
            sys::poll(&mut fds, None)?;
            if fds[0].revents != 0 {
                return Ok(());
            }
            self.continue_holders();
            fds[0].revents = 0;
            sys::poll(&mut fds[..1], Some(LOOK))?;
            if fds[0].revents != 0 {
                return Ok(());
            }
        }
    }

    /// Continues stopped supervisors once the controller has exited: they end what they supervise and exit. Kills those
    /// that hang.
    fn continue_holders(&self) {
        let Some(controller) = &self.controller else {
            return;
        };
        if !is_ready(controller, libc::POLLIN) {
            return;
        }
        let Ok(pipe) = std::fs::metadata(format!("/proc/self/fd/{}", self.names.as_raw_fd()))
        else {
            return;
        };
        let before = self.running.take();
        let mut running = HashMap::new();
        for pid in list_processes() {
            let Some(stat) = reap::Stat::of(pid).filter(|stat| stat.stopped || stat.runs) else {
                continue;
            };
            if !(sys::is_this_program(pid) && has_writing_end(pid, pipe.ino())) {
                continue;
            }
            if stat.stopped {
                let _ = sys::kill(pid, libc::SIGCONT);
                continue;
            }
            let often = before.get(&pid).map_or(1, |often| often + 1);
            if often >= HANGS {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
            running.insert(pid, often);
        }
        self.running.replace(running);
    }
}

/// The descriptors that a supervisor inherits from its controller: the keeper's lifeline, and a file with every record
/// that was written to it.
pub struct HeldDescriptors {
    descriptors: Vec<OwnedFd>,
    /// Our parent when we were started; if we have another one now, the controller has exited.
    controller: Option<rustix::process::Pid>,
}

impl Default for HeldDescriptors {
    fn default() -> Self {
        Self {
            descriptors: Vec::new(),
            controller: rustix::process::getppid(),
        }
    }
}

impl HeldDescriptors {
    /// Takes ownership of another descriptor: it stays open until this is dropped, and no command inherits it.
    pub fn take(&mut self, fd: u16) -> Result<(), lexopt::Error> {
        let held = take_inherited(fd)?;
        rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::CLOEXEC)
            .map_err(|_| format!("--hold {fd}: not an open file descriptor above 2"))?;
        self.descriptors.push(held);
        Ok(())
    }

    /// Removes the paths that were named to the keeper if neither keeper nor controller exists any more. Must be called
    /// after all users of the paths have ended. (A controller that is alive starts another keeper and continues to use
    /// its paths.)
    pub fn remove_unkept(&self) {
        use rustix::fs::{fstat, FileType};
        if rustix::process::getppid() == self.controller {
            return;
        }
        let kind = |fd: &&OwnedFd| {
            fstat(fd).map_or(FileType::Unknown, |data| {
                FileType::from_raw_mode(data.st_mode)
            })
        };
        let lifeline = self
            .descriptors
            .iter()
            .find(|fd| kind(fd) == FileType::Fifo);
        let names = self
            .descriptors
            .iter()
            .find(|fd| kind(fd) == FileType::RegularFile);
        let (Some(lifeline), Some(names)) = (lifeline, names) else {
            return;
        };
        // A pipe without a reader has an error at its writing end.
        if !is_ready(lifeline, 0) {
            return;
        }
        // Open it again by its path, because the descriptor's position is shared with the writers.
        let records = std::fs::read(format!("/proc/self/fd/{}", names.as_raw_fd()));
        let mut kept = KeptPaths::default();
        kept.parse_records(&records.unwrap_or_default());
        kept.remove_all();
    }
}

/// Whether a descriptor has these events, or has been hung up.
fn is_ready(fd: &OwnedFd, events: libc::c_short) -> bool {
    let mut fds = [libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    }];
    let _ = sys::poll(&mut fds, Some(Duration::ZERO));
    fds[0].revents != 0
}

fn list_processes() -> impl Iterator<Item = libc::pid_t> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process holds the writing end of a pipe.
fn has_writing_end(pid: libc::pid_t, pipe: u64) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    entries.flatten().any(|entry| {
        std::fs::read_link(entry.path())
            .is_ok_and(|target| target.as_os_str() == format!("pipe:[{pipe}]").as_str())
            && is_writable(pid, &entry.file_name())
    })
}

fn is_writable(pid: libc::pid_t, descriptor: &std::ffi::OsStr) -> bool {
    let info = Path::new("/proc").join(pid.to_string()).join("fdinfo");
    std::fs::read_to_string(info.join(descriptor))
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| libc::c_int::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Reads until the end of the lifeline, or of the second process, to which everything is passed on.
fn read_lifeline(kept: &mut KeptPaths, lifeline: &Lifeline, told: Option<&OwnedFd>) {
    let mut buffer = [0; 4096];
    while lifeline.wait().is_ok() {
        // Pass the bytes on before they are taken from the lifeline: if one process is killed in between, the other has
        // them. Reading a record twice does no harm. The caller replaces a second process that has exited.
        let mut wanted = match told.map(|told| tee_pipe(&lifeline.names, told)) {
            None => buffer.len(),
            Some(Ok(0) | Err(_)) => return,
            Some(Ok(count)) => count,
        };
        while wanted > 0 {
            let room = wanted.min(buffer.len());
            match sys::read(lifeline.names.as_raw_fd(), &mut buffer[..room]) {
                Ok(Some(0)) | Err(_) => return,
                Ok(Some(count)) => {
                    kept.parse_records(&buffer[..count]);
                    wanted = if told.is_some() { wanted - count } else { 0 };
                }
                Ok(None) => {}
            }
        }
    }
}

/// Waits for bytes in a pipe and duplicates them into another one without consuming them. Returns their number, 0 at
/// the end.
fn tee_pipe(from: &OwnedFd, to: &OwnedFd) -> io::Result<usize> {
    const MOST: usize = 64 << 10; // what a pipe holds: records are written whole, and are copied whole
    loop {
        // SAFETY: both descriptors are open pipes.
        let count = unsafe { libc::tee(from.as_raw_fd(), to.as_raw_fd(), MOST, 0) };
        if let Ok(count) = usize::try_from(count) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Starts the second process. Returns in the first one; in the second one only when it has taken the first one's place,
/// or when the paths are to be removed.
fn start_second(kept: &mut KeptPaths, lifeline: &Lifeline) -> io::Result<Role> {
    let (hear, tell) = sys::pipe()?;
    let first = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: this process has a single thread.
    match unsafe { libc::fork() } {
        -1 => return Ok(Role::First(None)),
        0 => {}
        pid => return Ok(Role::First(Some(Second { pid, tell }))),
    }
    drop(tell);
    rustix::process::setsid()?;
    let mut buffer = [0; 4096];
    let mut hung_up: Option<Instant> = None;
    let mut orphaned = false;
    loop {
        let mut fds = [
            libc::pollfd {
                fd: hear.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            },
            libc::pollfd {
                fd: if hung_up.is_none() {
                    lifeline.names.as_raw_fd()
                } else {
                    -1
                },
                events: 0,
                revents: 0,
            },
            libc::pollfd {
                fd: lifeline
                    .controller
                    .as_ref()
                    .filter(|_| !orphaned)
                    .map_or(-1, AsRawFd::as_raw_fd),
                events: libc::POLLIN,
                revents: 0,
            },
        ];
        let left = match hung_up {
            Some(at) => Some(PATIENCE_WITH_FIRST.saturating_sub(at.elapsed())),
            None => orphaned.then_some(LOOK),
        };
        sys::poll(&mut fds, left)?;
        orphaned |= fds[2].revents != 0;
        if orphaned && hung_up.is_none() {
            lifeline.continue_holders();
        }
        if fds[0].revents != 0 {
            match sys::read(hear.as_raw_fd(), &mut buffer) {
                Ok(Some(0)) | Err(_) => break,
                Ok(Some(count)) => kept.parse_records(&buffer[..count]),
                Ok(None) => {}
            }
        }
        if hung_up.is_none() && fds[1].revents & (libc::POLLHUP | libc::POLLERR) != 0 {
            hung_up = Some(Instant::now());
        }
        if hung_up.is_some_and(|at| at.elapsed() >= PATIENCE_WITH_FIRST) {
            // The first one is stopped or hangs; what it has not read is still in the lifeline.
            read_lifeline(kept, lifeline, None);
            return Ok(Role::Second(Some(first).filter(|_| is_child_of(first))));
        }
    }
    if lifeline.has_hung_up() {
        read_lifeline(kept, lifeline, None);
        return Ok(Role::Second(None));
    }
    start_second(kept, lifeline)
}

fn is_child_of(pid: libc::pid_t) -> bool {
    rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == pid)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Lifeline, lexopt::Error> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut names, mut controller) = (None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("lifeline") => names = Some(take_inherited(parser.value()?.parse()?)?),
            Arg::Long("controller") => controller = Some(take_inherited(parser.value()?.parse()?)?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Lifeline {
        names: names.ok_or("--lifeline needs a file descriptor above 2")?,
        controller,
        running: RefCell::default(),
    })
}

fn take_inherited(fd: u16) -> Result<OwnedFd, lexopt::Error> {
    if fd <= 2 {
        return Err(format!("{fd}: not a file descriptor above 2").into());
    }
    // SAFETY: it was passed to us for this; reading from one that is not open fails and ends the keeper.
    Ok(unsafe { OwnedFd::from_raw_fd(fd.into()) })
}

#[derive(Default)]
struct KeptPaths {
    paths: Vec<PathBuf>,
    partial: Vec<u8>,
}

impl KeptPaths {
    /// Removes the last one first: the first is the file of all names, which is still needed if this process is killed.
    fn remove_all(&self) {
        for path in self.paths.iter().rev() {
            remove(path);
        }
    }

    /// Reads the next bytes of the lifeline. Names that must not be removed are ignored.
    fn parse_records(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte != 0 {
                self.partial.push(byte);
                continue;
            }
            let mut record = std::mem::take(&mut self.partial);
            if record.is_empty() {
                continue;
            }
            let sign = record.remove(0);
            match (sign, require_removable(OsString::from_vec(record))) {
                (b'+', Ok(path)) => self.paths.push(path),
                (b'-', Ok(path)) => self.paths.retain(|kept| *kept != path),
                _ => {}
            }
        }
    }
}

/// Accepts only paths with our prefix: a caller's mistake must not cost users their files.
pub fn require_removable(path: OsString) -> Result<PathBuf, lexopt::Error> {
    use std::os::unix::ffi::OsStrExt;
    let path = PathBuf::from(path);
    let ours = path
        .file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"guestmark-"));
    if ours && path.is_absolute() {
        Ok(path)
    } else {
        Err(format!(
            "--remove {}: must be an absolute path whose last component starts with guestmark-",
            path.display()
        )
        .into())
    }
}

/// Removes a file, or a directory with everything in it, mounts included; reports failures on standard error.
pub fn remove(path: &Path) {
    if path.join(MEMBERS).exists() {
        return remove_group(path);
    }
    end_confined_in(path);
    unmount_below(path);
    let result = match std::fs::symlink_metadata(path) {
        // `remove_dir_all` does not follow symbolic links, not even ones created in the meantime.
        Ok(data) if data.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            eprintln!("guestmark-agent: cannot remove {}: {error}", path.display());
        }
        _ => {}
    }
}

/// Kills confined processes whose working directory is about to be removed. Normally their parents do that, but those
/// may have been killed.
fn end_confined_in(path: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let found: Vec<_> = list_processes()
            .filter(|&pid| works_in(pid, path) && is_confined(pid))
            .collect();
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn works_in(pid: libc::pid_t, path: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at.starts_with(path))
}

/// Whether a process has `no_new_privs` and a seccomp filter, as every confined process has and no user's shell.
fn is_confined(pid: libc::pid_t) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let says = |wanted: &str| status.lines().any(|line| line == wanted);
    says("NoNewPrivs:\t1") && says("Seccomp:\t2")
}

/// The file that lists the processes of a control group.
const MEMBERS: &str = "cgroup.procs";

/// Kills the processes in a control group, and removes the group.
fn remove_group(path: &Path) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Kernels before 5.14 and groups of version 1 have no such file.
        if std::fs::write(path.join("cgroup.kill"), "1").is_err() {
            let members = std::fs::read_to_string(path.join(MEMBERS)).unwrap_or_default();
            for pid in members.lines().filter_map(|line| line.parse().ok()) {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
        match std::fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if Instant::now() > deadline {
                    eprintln!("guestmark-agent: cannot remove {}: {error}", path.display());
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => return,
        }
    }
}

/// Detaches mounts below a path, the innermost first: the mount of a killed daemon hangs, and files in a live mount
/// must not be removed. Users without the permission to unmount have a helper program for it.
fn unmount_below(path: &Path) {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else {
        return;
    };
    for target in list_mounts_below(&table, path).iter().rev() {
        let Ok(name) = sys::make_cstring(target.as_os_str().as_encoded_bytes()) else {
            continue;
        };
        if rustix::mount::unmount(name, rustix::mount::UnmountFlags::DETACH).is_err() {
            let _ = std::process::Command::new("fusermount3")
                .args(["-u", "-z", "--"])
                .arg(target)
                .status();
        }
    }
}

/// Returns the mounts of `table` (a `mountinfo`) that lie below a path, in their order.
fn list_mounts_below(table: &[u8], path: &Path) -> Vec<PathBuf> {
    table
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4))
        .map(|field| PathBuf::from(OsString::from_vec(unescape(field))))
        .filter(|target| target.starts_with(path) && target != path)
        .collect()
}

/// Decodes white space and backslashes, which `mountinfo` writes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            plain.push(byte);
            rest = &after[3..];
        } else {
            plain.push(first);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{list_mounts_below, KeptPaths};
    use std::path::Path;

    #[test]
    fn mounts_are_found_below_a_path_only() {
        let table = b"36 35 0:1 / /tmp/guestmark-a/x\\040y rw - fuse d rw\n\
                      37 35 0:1 / /tmp/guestmark-ab/x rw - fuse d rw\n\
                      38 35 0:1 / /tmp/guestmark-a rw - tmpfs d rw\n";
        assert_eq!(
            list_mounts_below(table, Path::new("/tmp/guestmark-a")),
            [Path::new("/tmp/guestmark-a/x y")]
        );
    }

    #[test]
    fn what_is_taken_back_is_not_removed() {
        let mut kept = KeptPaths::default();
        for piece in [
            "+/tmp/guest",
            "mark-a\0+/tmp/guestmark-b\0",
            "-/tmp/guestmark-a\0+/tmp/guestmark-c",
        ] {
            kept.parse_records(piece.as_bytes());
        }
        assert_eq!(kept.paths, [std::path::Path::new("/tmp/guestmark-b")]);
    }

    #[test]
    fn only_what_is_named_as_ours_is_kept() {
        let mut kept = KeptPaths::default();
        kept.parse_records(b"+/home\0+guestmark-x\0+/\0+\0\0+/tmp/guestmark-x/..\0");
        assert!(kept.paths.is_empty());
    }
}
