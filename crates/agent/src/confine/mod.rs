//! `guestmark-agent confine`: becomes a hypervisor, or one of its helpers, that can change nothing on the host except
//! the named paths.
//!
//! A guest that is root, or that has broken out of its hypervisor, has the rights of the process that serves it. So
//! those rights are dropped before that process runs. It runs in namespaces of its own, a *cage*: it sees no other
//! processes, no networks, no message queues and no terminals, and everything in the cage ends together. Every mount
//! except the named paths is read-only, and Landlock, where the kernel has it, enforces the same again. Capabilities
//! that hypervisors do not need are dropped, a filter refuses what a namespace does not hide, above all sockets, and
//! executing a program grants no privileges. The restrictions that took effect are listed in its environment, for
//! attestation.
//!
//! Restrictions that the kernel or a container does not support are skipped, and reported as missing; any other failure
//! is fatal.

pub mod cage;
mod connections;
mod filter;
pub mod gauge;
mod landlock;
pub mod mounts;
mod privileges;
mod registers;

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::ValueExt;

pub use self::cage::exit_like_child;
use self::connections::Connections;
pub use self::privileges::drop_rights_over_host;
use crate::options::{read_until_command, to_io_error};
use crate::sys::check;
use crate::{spawn, sys};

/// Variable that lists which restrictions took effect: `mounts,landlock,filter`.
const CONFINED: &str = "GUESTMARK_CONFINED";
/// Makes the kernel kill this process first when the host runs out of memory.
pub const ENDED_FIRST: &str = "1000";
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The rights that a program keeps.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each option of the command line"
)]
struct Options {
    writable: Vec<PathBuf>,
    temporary: Option<PathBuf>,
    over_temporary: Option<PathBuf>,
    own_memory: bool,
    own_files: bool,
    metadata: bool,
    user: Option<(u32, u32)>,
    network: bool,
    sockets: bool,
    serves_files: bool,
    no_io_uring: bool,
    kvm: bool,
    taps: bool,
    vhost: bool,
    packets: bool,
    traces: bool,
    no_thp: bool,
    stops: Option<PathBuf>,
    lifeline: Option<OwnedFd>,
    groups: Vec<PathBuf>,
    processes: Option<u32>,
    command: Vec<OsString>,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let mut options = Options::default();
    let command = read_until_command(arguments, |name, parser| {
        match name {
            "writable" => options.writable.push(require_absolute(parser.value()?)?),
            "temporary" => options.temporary = Some(require_absolute(parser.value()?)?),
            "over-temporary" => {
                options.over_temporary = Some(require_absolute(parser.value()?)?);
            }
            "own-memory" => options.own_memory = true,
            "own-files" => options.own_files = true,
            "metadata" => options.metadata = true,
            "user" => options.user = Some(parse_user(&parser.value()?)?),
            "network" => options.network = true,
            "sockets" => options.sockets = true,
            "lifeline" => options.lifeline = Some(take_lifeline(parser.value()?.parse()?)?),
            "group" => options.groups.push(require_absolute(parser.value()?)?),
            "processes" => options.processes = Some(parser.value()?.parse()?),
            "serves-files" => options.serves_files = true,
            "no-io-uring" => options.no_io_uring = true,
            "kvm" => options.kvm = true,
            "taps" => options.taps = true,
            "vhost" => options.vhost = true,
            "packets" => options.packets = true,
            "no-thp" => options.no_thp = true,
            "traces" => options.traces = true,
            "stops" => options.stops = Some(require_absolute(parser.value()?)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    options.command = command;
    Ok(options)
}

/// Parses a user and a group, such as `1000:100`.
fn parse_user(text: &OsString) -> Result<(u32, u32), lexopt::Error> {
    text.to_str()
        .and_then(|text| text.split_once(':'))
        .and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)))
        .ok_or_else(|| {
            format!(
                "{}: must be USER:GROUP, both as numbers",
                text.to_string_lossy()
            )
            .into()
        })
}

fn require_absolute(path: OsString) -> Result<PathBuf, lexopt::Error> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("{}: must be an absolute path", path.display()).into())
    }
}

/// Takes ownership of the inherited lifeline, which the command does not inherit.
fn take_lifeline(fd: u16) -> Result<OwnedFd, lexopt::Error> {
    let fd = i32::from(fd);
    // SAFETY: used for one system call that copes with a descriptor that is not open.
    let known = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    if fd <= 2 || rustix::io::fcntl_setfd(known, rustix::io::FdFlags::CLOEXEC).is_err() {
        return Err(format!("--lifeline {fd}: not an open file descriptor above 2").into());
    }
    // SAFETY: it is open, as was just seen, and nothing else in this process uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Becomes the command, confined. Returns only if that fails, or in a supervising process after the command has ended.
pub fn confine(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    let mut writable = Vec::new();
    for path in options.writable.iter().chain(&options.temporary) {
        let real = std::fs::canonicalize(path)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        writable.push(sys::make_cstring(real.as_os_str().as_bytes())?);
    }
    for group in &options.groups {
        std::fs::write(group.join("cgroup.procs"), "0")
            .map_err(|error| io::Error::other(format!("{}: {error}", group.display())))?;
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", ENDED_FIRST);
    if options.no_thp {
        // SAFETY: a plain system call; the command inherits it.
        check(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) })?;
    }
    let (mounted, channel) = match enter_cage(&options, &writable)? {
        Ok(inside) => inside,
        Err(status) => return Ok(status),
    };
    // In a cage the namespace limits them. This limit has no effect on root.
    if let (false, Some(most)) = (mounted.read_only, options.processes) {
        limit_processes(most)?;
    }
    let held = restrict(&options, &writable, &mounted, channel.as_ref())?;
    if let Some(temporary) = &options.temporary {
        std::env::set_var("TMPDIR", temporary);
    }
    std::env::set_var(CONFINED, held.join(","));
    if options.traces {
        registers::preload_library(options.stops.as_deref())?;
    }
    become_command(&options.command)
}

/// Limits the processes of this user to those that exist now, threads included, plus `most`.
fn limit_processes(most: u32) -> io::Result<()> {
    let user = rustix::process::getuid().as_raw();
    let now: u64 = std::fs::read_dir("/proc")?
        .flatten()
        .filter(|entry| entry.metadata().is_ok_and(|found| found.uid() == user))
        // A directory's link count is two more than the number of its subdirectories.
        .filter_map(|entry| std::fs::metadata(entry.path().join("task")).ok())
        .map(|threads| threads.nlink().saturating_sub(2))
        .sum();
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls are given a structure that outlives them.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limits))?;
        limits.rlim_max = limits.rlim_max.min((now + u64::from(most)) as libc::rlim_t);
        limits.rlim_cur = limits.rlim_cur.min(limits.rlim_max);
        check(libc::setrlimit(libc::RLIMIT_NPROC, &raw const limits)).map(drop)
    }
}

/// The state of the process that is to become the command: its mounts, and the socket to the process that decides about
/// connections.
type Inside = (mounts::AppliedMounts, Option<OwnedFd>);

/// Enters a cage, if one can be created, as the process that is to become the command. In the processes that wait for
/// the command, returns its exit status.
fn enter_cage(options: &Options, writable: &[CString]) -> io::Result<Result<Inside, ExitCode>> {
    let is_root = rustix::process::geteuid().is_root();
    let lifeline = options.lifeline.as_ref();
    // In a user namespace, files of all other users appear to belong to nobody. Where Landlock does the work of
    // read-only mounts, guests see the files as they are.
    let landlocked = landlock::Abi::detect().is_some();
    if is_root || options.serves_files || options.own_files || !landlocked {
        let namespaces = cage::Namespaces {
            user: !is_root,
            network: !options.network,
        };
        match cage::enter_namespaces(namespaces, lifeline)? {
            cage::EnteredAs::Done(status) => return Ok(Err(status)),
            cage::EnteredAs::Outside => {}
            cage::EnteredAs::Inside(first) => {
                let over_temporary = options
                    .over_temporary
                    .as_ref()
                    .map(|path| sys::make_cstring(path.as_os_str().as_bytes()))
                    .transpose()?;
                let layout = mounts::Layout {
                    writable,
                    over_temporary: over_temporary.as_deref(),
                    covered: &[],
                    own_memory: options.own_memory,
                    memory_size: None,
                    devices: None,
                    processes: options.processes,
                };
                return match mounts::make_read_only(&layout) {
                    Ok(done) if done.read_only => {
                        let (connections, channel) = choose_connections(options, writable)?;
                        first.fork(lifeline, connections, None)?;
                        Ok(Ok((done, channel)))
                    }
                    Ok(_) => first.give_up(),
                    Err(error) => {
                        eprintln!("guestmark-agent: {error}");
                        first.fail(FAILED)
                    }
                };
            }
        }
    }
    if lifeline.is_some() {
        let (connections, channel) = choose_connections(options, writable)?;
        return Ok(match cage::watch(lifeline, connections)? {
            Some(status) => Err(status),
            None => Ok((mounts::AppliedMounts::default(), channel)),
        });
    }
    Ok(Ok((mounts::AppliedMounts::default(), None)))
}

/// Creates what decides about connections, if the command may connect only to sockets below writable paths; also
/// returns the socket to reach it.
fn choose_connections(
    options: &Options,
    writable: &[CString],
) -> io::Result<(Option<Connections>, Option<OwnedFd>)> {
    if !options.sockets || options.network {
        return Ok((None, None));
    }
    let temporary = options.over_temporary.as_ref().map(|_| mounts::TEMPORARY);
    let places = writable.iter().map(CString::as_c_str).chain(temporary);
    let (connections, channel) = Connections::new(places)?;
    Ok((Some(connections), Some(channel)))
}

/// Becomes a command that runs User-Mode Linux without confinement, as on another machine or inside another guest.
pub fn become_unconfined(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    registers::preload_library(options.stops.as_deref())?;
    become_command(&options.command)
}

/// Drops every right that the options do not list; returns the restrictions that took effect.
fn restrict(
    options: &Options,
    writable: &[CString],
    mounted: &mounts::AppliedMounts,
    channel: Option<&OwnedFd>,
) -> io::Result<Vec<&'static str>> {
    let mut held = Vec::new();
    let rules = landlock::Abi::detect();
    privileges::forbid_new_privileges()?;
    privileges::disable_core_dumps()?;
    if let Some(rules) = rules {
        let mut writable = writable.to_vec();
        writable.extend(
            options
                .over_temporary
                .is_some()
                .then(|| mounts::TEMPORARY.to_owned()),
        );
        writable.extend(options.own_memory.then(|| mounts::MEMORY.to_owned()));
        if rules.restrict(&writable, options.network)? {
            held.push("landlock");
        }
    }
    if let Some((user, group)) = options.user {
        privileges::become_user(user, group)?;
    }
    let user = rustix::process::geteuid();
    privileges::drop_capabilities(privileges::KeptRights {
        is_root: user.is_root(),
        others_files: options
            .writable
            .iter()
            .any(|path| std::fs::metadata(path).is_ok_and(|found| found.uid() != user.as_raw())),
        serves_files: options.serves_files,
        builds_files: options.metadata,
        packets: options.packets,
    })?;
    let refused = filter::Refusals {
        // Unlike read-only mounts, Landlock does not protect modes, owners and times of files.
        metadata: !mounted.read_only && !options.metadata && !options.own_files,
        truncation: !mounted.read_only && !rules.is_some_and(landlock::Abi::knows_truncation),
        io_uring: options.no_io_uring,
        kvm: !options.kvm,
        taps: !options.taps,
        vhost: !options.vhost,
        packets: !options.packets,
        local_sockets: !options.sockets,
        network: !options.network,
        queues: !(options.own_files || options.metadata),
        connections: match (channel, options.network) {
            (_, true) => filter::ConnectPolicy::Allowed,
            (Some(_), false) => filter::ConnectPolicy::Asked,
            (None, false) => filter::ConnectPolicy::Refused,
        },
    };
    if let Some(installed) = filter::install(refused)? {
        held.push("filter");
        if let (Some(questions), Some(channel)) = (&installed.questions, channel) {
            connections::send_filter(questions, channel)?;
        }
        if refused.local_sockets {
            held.push("no-sockets");
        } else if installed.questions.is_some()
            || refused.connections == filter::ConnectPolicy::Refused
        {
            held.push("own-sockets");
        }
        if refused.network {
            held.push("no-network");
        }
        if refused.io_uring {
            held.push("no-rings");
        }
    }
    let of_mounts = [
        (mounted.read_only, "mounts"),
        (mounted.read_only, "cage"),
        (mounted.over_temporary, "temporary"),
        (mounted.own_memory, "memory"),
    ];
    held.extend(
        of_mounts
            .iter()
            .filter(|(done, _)| *done)
            .map(|&(_, word)| word),
    );
    Ok(held)
}

/// Executes a command. Returns only on failure, after printing the reason.
pub fn become_command(words: &[OsString]) -> io::Result<ExitCode> {
    let path = std::env::var_os("PATH");
    let files = spawn::list_candidates(
        words[0].as_bytes(),
        path.as_ref().map(|path| path.as_bytes()),
        None,
    );
    let argv = words
        .iter()
        .cloned()
        .map(|word| sys::make_cstring(&word.into_vec()))
        .collect::<io::Result<Vec<_>>>()?;
    let mut pointers: Vec<_> = argv.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for file in files {
        let file = sys::make_cstring(&file)?;
        // SAFETY: both are terminated by null and outlive the call.
        unsafe { libc::execv(file.as_ptr(), pointers.as_ptr()) };
        error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EACCES) {
            break;
        }
    }
    eprintln!("guestmark-agent: {}: {error}", words[0].to_string_lossy());
    Ok(ExitCode::from(
        if error.raw_os_error() == Some(libc::ENOENT) {
            NOT_FOUND
        } else {
            NOT_EXECUTABLE
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    fn parse(words: &[&str]) -> Result<super::Options, String> {
        super::parse(words.iter().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        let options = parse(&[
            "--writable",
            "/tmp/x",
            "--network",
            "--",
            "qemu",
            "--writable",
            "y",
        ]);
        let options = options.unwrap();
        assert_eq!(options.command, ["qemu", "--writable", "y"]);
        assert_eq!(options.writable, [std::path::PathBuf::from("/tmp/x")]);
        assert!(options.network && !options.serves_files);
    }

    #[test]
    fn users_are_numbers() {
        let user = |text: &str| parse(&[text, "true"]).map(|options| options.user);
        assert_eq!(user("--user=65534:100"), Ok(Some((65534, 100))));
        for text in ["--user=nobody", "--user=1", "--user=:", "--user=-1:0"] {
            assert!(
                user(text).is_err_and(|error| error.contains("USER:GROUP")),
                "{text}"
            );
        }
    }

    #[test]
    fn paths_are_absolute_and_there_is_a_command() {
        assert!(parse(&["--writable", "x", "true"]).is_err_and(|e| e.contains("absolute")));
        assert!(parse(&["--writable", "/x"]).is_err_and(|e| e.contains("command")));
    }
}
