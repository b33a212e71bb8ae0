//! `guestmark-agent sandbox`: mounts a throw-away root, waits, then becomes the program that starts a sandbox.
//!
//! The root is this host's, under an overlay layer in memory, and so is each directory named by `--layer`. It is in
//! mount and process namespaces whose first process becomes the program: when the program exits, the kernel kills
//! everything in them. The *outer* process waits for the program, and the program is killed when the outer process
//! exits.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use lexopt::ValueExt;
use rustix::mount::{MountFlags, MountPropagationFlags};

use crate::confine::exit_like_child;
use crate::options::{read_until_command, to_io_error};
use crate::sys::{self, check};

const FAILED: i32 = 125;

#[derive(Debug)]
struct Options {
    /// An empty directory, below which everything is mounted.
    at: PathBuf,
    /// The file for the error messages of this process and of the program.
    complaints: PathBuf,
    /// Descriptor that is written to when everything has been prepared.
    prepared: i32,
    /// Descriptor that is read from before the program is executed.
    go: i32,
    /// Control groups to join before anything is mounted.
    groups: Vec<PathBuf>,
    /// Directories of this host that get a layer of their own, parents before children.
    layers: Vec<PathBuf>,
    /// Whether the program is root in user and control group namespaces of its own; required for users other than root.
    own_users: bool,
    /// Environment variables that the program does not inherit.
    unset: Vec<OsString>,
    /// Directories that appear empty to the program.
    hidden: Vec<PathBuf>,
    command: Vec<OsString>,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let (mut at, mut complaints, mut prepared, mut go) = (None, None, None, None);
    let (mut groups, mut layers, mut unset) = (Vec::new(), Vec::new(), Vec::new());
    let mut hidden = Vec::new();
    let mut own_users = false;
    let command = read_until_command(arguments, |name, parser| {
        match name {
            "at" => at = Some(parser.value()?.into()),
            "complaints" => complaints = Some(parser.value()?.into()),
            "prepared" => prepared = Some(parser.value()?.parse::<u16>()?.into()),
            "go" => go = Some(parser.value()?.parse::<u16>()?.into()),
            "group" => groups.push(parser.value()?.into()),
            "layer" => layers.push(parser.value()?.into()),
            "own-users" => own_users = true,
            "unset" => unset.push(parser.value()?),
            "hide" => hidden.push(parser.value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(Options {
        at: at.ok_or("--at is missing")?,
        complaints: complaints.ok_or("--complaints is missing")?,
        prepared: prepared.ok_or("--prepared is missing")?,
        go: go.ok_or("--go is missing")?,
        groups,
        layers,
        own_users,
        unset,
        hidden,
        command,
    })
}

/// Runs the subcommand; ends the way the program ends.
pub fn become_sandbox(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    let (prepared, go) = (
        take_descriptor(options.prepared)?,
        take_descriptor(options.go)?,
    );
    let complaints = File::create(&options.complaints)?;
    // SAFETY: both are open descriptors.
    check(unsafe { libc::dup2(complaints.as_raw_fd(), 2) })?;
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let (pid, joined) = fork_first_process(&options)
        .map_err(|error| sys::add_context("cannot create mount and process namespaces", &error))?;
    if pid == 0 {
        let mapped = if options.own_users {
            sys::map_to_root(user.as_raw(), group.as_raw())
        } else {
            Ok(())
        };
        let error = mapped
            .and_then(|()| join_groups(&options.groups, joined))
            .and_then(|()| prepare(&options, prepared.into(), go.into()))
            .map_or_else(|error| error, |()| execute(&options));
        eprintln!("{error}");
        // SAFETY: ends this process.
        unsafe { libc::_exit(FAILED) }
    }
    drop((prepared, go));
    let mut status = 0;
    // SAFETY: waits for our own child; the out pointer is valid.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } < 0 {}
    Ok(exit_like_child(status))
}

/// Takes ownership of an inherited descriptor, which the program does not inherit.
fn take_descriptor(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: used for one system call that copes with a descriptor that is not open.
    let seen = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_setfd(seen, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, as was just seen, and nothing else in this process uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Forks into new namespaces. Returns 0 in their first process and its process id in the outer one, and the control
/// group in which it was created.
///
/// To move a process into a group, the kernel waits until every processor has noticed, which takes 15 ms on a busy
/// host. A process that is created in the group does not wait, nor does a thread that moves itself to a group of
/// version 1 (`join_groups`).
fn fork_first_process(options: &Options) -> io::Result<(libc::pid_t, Option<usize>)> {
    let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    if options.own_users {
        flags |= libc::CLONE_NEWUSER | libc::CLONE_NEWCGROUP;
    }
    let mut groups = options.groups.iter();
    if let Some(newer) = groups.position(|group| !group.join(TASKS).exists()) {
        let group = File::open(&options.groups[newer])?;
        if let Ok(pid) = sys::fork_into_group(flags, group.as_fd()) {
            return Ok((pid, Some(newer)));
        }
    }
    Ok((sys::fork_into(flags)?, None))
}

/// File with the threads of a control group of version 1.
const TASKS: &str = "tasks";

/// Moves this single-threaded process into its groups, except the one in which it was created.
fn join_groups(groups: &[PathBuf], born_in: Option<usize>) -> io::Result<()> {
    for (number, group) in groups.iter().enumerate() {
        if Some(number) != born_in && fs::write(group.join(TASKS), "0").is_err() {
            fs::write(group.join("cgroup.procs"), "0")
                .map_err(|error| sys::add_context(group.display(), &error))?;
        }
    }
    Ok(())
}

/// Mounts the root, reports that, and waits for the signal to continue.
fn prepare(options: &Options, mut prepared: File, mut go: File) -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", Path::new("/proc"), plain, "")?;
    let at = &options.at;
    mount("tmpfs", at, MountFlags::empty(), "mode=755,size=50%")?;
    for name in ["root", "run", "shm"] {
        fs::create_dir(at.join(name))?;
    }
    // The runtime's state must be new for each sandbox. So must shared memory, where podman keeps the locks of all
    // containers of a host: a killed podman would leave its lock held.
    if !at.starts_with("/run") {
        bind(&at.join("run"), "/run")?;
    }
    if !at.starts_with("/dev/shm") {
        let _ = bind(&at.join("shm"), "/dev/shm");
    }
    if options.own_users {
        make_skeleton(at, &options.layers)?;
    }
    for (number, directory) in options.layers.iter().enumerate() {
        mount_layer(at, number, directory, options.own_users)?;
    }
    for directory in &options.hidden {
        mount("tmpfs", directory, MountFlags::RDONLY, "size=0")?;
    }
    show_groups();
    prepared.write_all(b"prepared\n")?;
    if go.read(&mut [0; 8])? == 0 {
        return Err(io::Error::other(
            "the process that waited for the sandbox has exited",
        ));
    }
    Ok(())
}

/// Mounts control groups of version 2, which some runtimes require, read-only.
fn show_groups() {
    let groups = Path::new("/sys/fs/cgroup");
    let newer =
        |place: &PathBuf| rustix::fs::statfs(place).is_ok_and(|found| found.f_type == CGROUP2);
    // A new mount takes 10 ms, so bind an existing one if possible.
    let there = [groups.join("unified"), groups.to_owned()];
    let shown = match there.iter().find(|place| newer(place)) {
        Some(place) => rustix::mount::mount_bind(place, groups).is_ok(),
        None => mount("cgroup2", groups, MountFlags::empty(), "").is_ok(),
    };
    if shown {
        let _ = rustix::mount::mount_remount(groups, MountFlags::BIND | MountFlags::RDONLY, c"");
    }
}

/// `CGROUP2_SUPER_MAGIC` of `linux/magic.h`.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;

/// Recreates the directories and links that this host has beside the layers, if the root itself has no layer.
fn make_skeleton(at: &Path, layers: &[PathBuf]) -> io::Result<()> {
    let above: BTreeSet<_> = layers
        .iter()
        .flat_map(|layer| layer.ancestors().skip(1))
        .collect();
    for directory in above {
        let there = locate_inside(at, directory);
        fs::create_dir_all(&there)?;
        for entry in fs::read_dir(directory)?.flatten() {
            let (kind, target) = (entry.file_type()?, there.join(entry.file_name()));
            if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(entry.path())?, target)?;
            } else if kind.is_dir() {
                fs::create_dir_all(target)?;
            }
        }
    }
    Ok(())
}

/// Returns where a directory of this host is in the new root.
fn locate_inside(at: &Path, directory: &Path) -> PathBuf {
    at.join("root")
        .join(directory.strip_prefix("/").unwrap_or(directory))
}

/// Mounts a layer: changes to a directory of this host go to memory, and appear at the same place of the new root.
fn mount_layer(at: &Path, number: usize, directory: &Path, of_user: bool) -> io::Result<()> {
    let made = at.join(number.to_string());
    fs::create_dir(&made)?;
    let (upper, work) = (made.join("upper"), made.join("work"));
    fs::create_dir(&upper)?;
    fs::create_dir(&work)?;
    let mut options = OsString::from("lowerdir=");
    options.extend([
        directory.as_os_str(),
        ",upperdir=".as_ref(),
        upper.as_os_str(),
    ]);
    options.extend([",workdir=".as_ref(), work.as_os_str()]);
    if of_user {
        options.push(",userxattr"); // a user may not set trusted attributes
    }
    let target = locate_inside(at, directory);
    let options = sys::make_cstring(options.as_bytes())?;
    rustix::mount::mount(
        "overlay",
        &target,
        "overlay",
        MountFlags::empty(),
        options.as_c_str(),
    )
    .map_err(|error| {
        let what = format!("cannot mount an overlay over {}", directory.display());
        sys::add_context(what, &error.into())
    })
}

/// Executes the program; returns only on failure.
fn execute(options: &Options) -> io::Error {
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    command.env("XDG_RUNTIME_DIR", "/run");
    for name in &options.unset {
        command.env_remove(name);
    }
    sys::add_context(options.command[0].to_string_lossy(), &command.exec())
}

fn mount(kind: &str, target: &Path, flags: MountFlags, data: &str) -> io::Result<()> {
    let options = sys::make_cstring(data.as_bytes())?;
    rustix::mount::mount(kind, target, kind, flags, options.as_c_str()).map_err(|error| {
        let what = format!("cannot mount {kind} on {}", target.display());
        sys::add_context(what, &error.into())
    })
}

fn bind(what: &Path, target: &str) -> io::Result<()> {
    rustix::mount::mount_bind(what, target).map_err(|error| sys::add_context(target, &error.into()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    fn parse(words: &[&str]) -> Result<super::Options, String> {
        super::parse(words.iter().map(OsString::from)).map_err(|error| error.to_string())
    }

    const WHOLE: [&str; 8] = [
        "--at",
        "/m",
        "--complaints",
        "/c",
        "--prepared",
        "5",
        "--go",
        "6",
    ];

    #[test]
    fn the_program_keeps_its_own_options() {
        let words = [
            "--layer", "/", "--layer", "/home", "--", "crun", "--at", "x",
        ];
        let options = parse(&[&WHOLE[..], &words].concat()).unwrap();
        assert_eq!((options.prepared, options.go), (5, 6));
        assert_eq!(options.layers, ["/", "/home"].map(std::path::PathBuf::from));
        assert_eq!(options.command, ["crun", "--at", "x"]);
    }

    #[test]
    fn what_is_missing_is_said() {
        for left_out in (0..WHOLE.len()).step_by(2) {
            let mut words = WHOLE.to_vec();
            let name: String = words.drain(left_out..left_out + 2).take(1).collect();
            words.push("true");
            let error = parse(&words).unwrap_err();
            assert!(error.contains(&name), "{error}");
        }
        assert!(parse(&WHOLE).is_err_and(|error| error.contains("command")));
    }
}
