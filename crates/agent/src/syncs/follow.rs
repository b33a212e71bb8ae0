//! `guestmark-agent follow`: logs what a program does to the files on a disk, and optionally syncs after some calls.
//!
//! The program keeps its standard streams. Each call that succeeds gives a line, `CALL PATH…`, with paths below the
//! disk in hexadecimal: calls that change a file's content (`write`, `truncate`, `map`) or its name (`create`,
//! `rename`, `link`, `remove`), or that promise either (`fsync`, `sync`, `write-synced`). `said` marks the end of each
//! line of its standard output. With `--sync-after CALL:PATH`, everything on the disk is synced after each such call
//! before the program continues, as if its author had added the sync; a path that ends in `/` stands for everything
//! below it. With `--sync-after-all` the disk is synced after every call that changes anything, and with
//! `--sync-before-said` before a line can be read.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use lexopt::ValueExt;

use crate::options::{read_until_command, to_io_error};

use super::abi::MMAP;
use super::calls::{ptrace, resume, wait, Stop, TRACE_OPTIONS};
use super::changes::{find_write_flags, read_open_flags, resolve_name};
use super::files::encode_hex;
use super::queues::Memory;
use super::tracer::WITH_DATA;

const WRITE: &str = "write";
const CREATE: &str = "create";
const FSYNC: &str = "fsync";
const SAID: &str = "said";

struct Job {
    disk: PathBuf,
    log: PathBuf,
    /// Calls and paths after which everything is to be synced.
    after: Vec<(String, PathBuf)>,
    /// Whether everything is to be synced after each change.
    after_all: bool,
    /// Whether everything is to be synced before each line of output.
    before_said: bool,
    argv: Vec<OsString>,
}

impl Job {
    fn asks_for_sync(&self, operation: &FileOperation) -> bool {
        // A sync of all files has no path, and a sync of one file changes nothing.
        let Some(path) = operation.paths.last() else {
            return false;
        };
        if self.after_all && operation.call != FSYNC {
            return true;
        }
        self.after.iter().any(|(call, wanted)| {
            let below = wanted.as_os_str().as_bytes().ends_with(b"/");
            *call == operation.call && (path == wanted || (below && path.starts_with(wanted)))
        })
    }
}

/// A call's effect, if it succeeds.
struct FileOperation {
    call: &'static str,
    paths: Vec<PathBuf>,
}

/// Runs the program, and exits with its status.
pub fn follow(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let job = parse(arguments).map_err(|error| to_io_error(&error))?;
    let mut follower = Follower {
        disk: File::open(&job.disk)?,
        log: io::BufWriter::new(File::create(&job.log)?),
        job,
        begun: HashMap::new(),
    };
    let status = follower.run()?;
    follower.log.flush()?;
    Ok(crate::confine::exit_like_child(status))
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Job, lexopt::Error> {
    let (mut disk, mut log, mut after) = (None, None, Vec::new());
    let (mut after_all, mut before_said) = (false, false);
    let argv = read_until_command(arguments, |name, parser| {
        match name {
            "disk" => disk = Some(PathBuf::from(parser.value()?)),
            "log" => log = Some(parser.value()?.into()),
            "sync-after-all" => after_all = true,
            "sync-before-said" => before_said = true,
            "sync-after" => {
                let value = parser.value()?.string()?;
                let (call, path) = value
                    .split_once(':')
                    .ok_or("--sync-after needs CALL:PATH")?;
                after.push((call.to_owned(), path.into()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(Job {
        disk: disk.ok_or("--disk is missing")?,
        log: log.ok_or("--log is missing")?,
        after,
        after_all,
        before_said,
        argv,
    })
}

struct Follower {
    disk: File,
    log: io::BufWriter<File>,
    job: Job,
    begun: HashMap<libc::pid_t, Option<FileOperation>>,
}

impl Follower {
    fn run(&mut self) -> io::Result<libc::c_int> {
        let mut command = Command::new(&self.job.argv[0]);
        command.args(&self.job.argv[1..]);
        // SAFETY: ptrace(2) is async-signal-safe.
        unsafe {
            command.pre_exec(|| ptrace(libc::PTRACE_TRACEME as _, 0, 0, 0).map(|_| ()));
        }
        let main = command.spawn()?.id() as libc::pid_t;
        let (_, status) = wait(main)?;
        if !libc::WIFSTOPPED(status) {
            return Ok(status);
        }
        ptrace(
            libc::PTRACE_SETOPTIONS as _,
            main,
            0,
            TRACE_OPTIONS as usize,
        )?;
        self.begun.insert(main, None);
        resume(main, 0);
        loop {
            let (pid, status) = wait(-1)?;
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.begun.remove(&pid);
                if pid == main {
                    return Ok(ExitStatus::from_raw(status).into_raw());
                }
                continue;
            }
            let signal = libc::WSTOPSIG(status);
            let mut deliver = 0;
            if signal == libc::SIGTRAP | 0x80 {
                self.stop_at_call(pid)?;
            } else if self.begun.contains_key(&pid) && status >> 16 == 0 {
                deliver = signal;
            }
            self.begun.entry(pid).or_insert(None); // a new one begins with a stop of its own
            resume(pid, deliver);
        }
    }

    fn stop_at_call(&mut self, pid: libc::pid_t) -> io::Result<()> {
        let stop = match Stop::of(pid) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            other => other?,
        };
        match stop {
            Stop::Entry(number, arguments, _) => {
                let operation = self.find_operation(pid, number, &arguments);
                // Log output before anybody can read it.
                if let Some(operation) = operation
                    .as_ref()
                    .filter(|operation| operation.call == SAID)
                {
                    if self.job.before_said {
                        self.sync_disk()?;
                    }
                    self.write_log_line(operation)?;
                }
                self.begun.insert(pid, operation);
            }
            Stop::Exit(result) => {
                let operation = self.begun.insert(pid, None).flatten();
                let done = operation.filter(|operation| result.is_some() && operation.call != SAID);
                if let Some(operation) = done {
                    self.write_log_line(&operation)?;
                    if self.job.asks_for_sync(&operation) {
                        self.sync_disk()?;
                    }
                }
            }
            Stop::Neither => {}
        }
        Ok(())
    }

    /// Syncs the disk while the task that made the call is stopped, as if the task itself had synced it.
    fn sync_disk(&mut self) -> io::Result<()> {
        rustix::fs::syncfs(&self.disk)?;
        self.write_log_line(&FileOperation {
            call: "sync",
            paths: Vec::new(),
        })
    }

    fn write_log_line(&mut self, operation: &FileOperation) -> io::Result<()> {
        write!(self.log, "{}", operation.call)?;
        for path in &operation.paths {
            let below = path.strip_prefix(&self.job.disk).unwrap_or(path);
            write!(self.log, " {}", encode_hex(below.as_os_str().as_bytes()))?;
        }
        writeln!(self.log)
    }

    fn find_operation(
        &self,
        pid: libc::pid_t,
        number: libc::c_long,
        arguments: &[u64; 6],
    ) -> Option<FileOperation> {
        let of = |call, paths| Some(FileOperation { call, paths });
        match number {
            libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwrite64
            | libc::SYS_pwritev
            | libc::SYS_pwritev2 => {
                let descriptor = arguments[0] as i32;
                let Some(path) = self.open_path(pid, descriptor) else {
                    return (descriptor == 1 && is_ours(pid) && ends_line(pid, number, arguments))
                        .then(|| FileOperation {
                            call: SAID,
                            paths: Vec::new(),
                        });
                };
                let (flags, _) = read_open_flags(pid, descriptor)?;
                let synced = WITH_DATA.are_in(flags, find_write_flags(number, arguments));
                of(if synced { "write-synced" } else { WRITE }, vec![path])
            }
            libc::SYS_sendfile | libc::SYS_copy_file_range | libc::SYS_splice => {
                let to = match number {
                    libc::SYS_sendfile => arguments[0],
                    _ => arguments[2],
                };
                let path = self.open_path(pid, to as i32)?;
                let (flags, _) = read_open_flags(pid, to as i32)?;
                let synced = flags & libc::O_DSYNC != 0;
                of(if synced { "write-synced" } else { WRITE }, vec![path])
            }
            libc::SYS_ftruncate | libc::SYS_fallocate => {
                of("truncate", vec![self.open_path(pid, arguments[0] as i32)?])
            }
            MMAP => {
                let shared = [libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE]
                    .contains(&(arguments[3] as i32 & 0xf));
                let written = arguments[2] & libc::PROT_WRITE as u64 != 0;
                (shared && written).then_some(())?;
                of("map", vec![self.open_path(pid, arguments[4] as i32)?])
            }
            libc::SYS_fsync | libc::SYS_fdatasync => {
                of(FSYNC, vec![self.open_path(pid, arguments[0] as i32)?])
            }
            libc::SYS_sync => of("sync", Vec::new()),
            libc::SYS_syncfs => self
                .open_path(pid, arguments[0] as i32)
                .and_then(|_| of("sync", Vec::new())),
            libc::SYS_msync if arguments[2] & libc::MS_SYNC as u64 != 0 => of("msync", Vec::new()),
            _ => self.find_name_change(pid, number, arguments),
        }
    }

    /// Returns the effect of a call that changes names.
    fn find_name_change(
        &self,
        pid: libc::pid_t,
        number: libc::c_long,
        a: &[u64; 6],
    ) -> Option<FileOperation> {
        let creates = |flags: u64| flags & libc::O_CREAT as u64 != 0;
        let (call, names) = match number {
            libc::SYS_openat if creates(a[2]) => (CREATE, vec![(a[0], a[1])]),
            libc::SYS_mkdirat => (CREATE, vec![(a[0], a[1])]),
            libc::SYS_renameat2 => ("rename", vec![(a[0], a[1]), (a[2], a[3])]),
            libc::SYS_linkat => ("link", vec![(a[0], a[1]), (a[2], a[3])]),
            libc::SYS_symlinkat => (CREATE, vec![(a[1], a[2])]),
            libc::SYS_unlinkat => ("remove", vec![(a[0], a[1])]),
            _ => return None,
        };
        let paths = names
            .into_iter()
            .map(|(directory, name)| resolve_name(pid, directory as i32, name, &self.job.disk))
            .collect::<Option<Vec<_>>>()?;
        // Opening an existing file creates no name.
        if call == CREATE && fs::symlink_metadata(&paths[0]).is_ok() {
            return None;
        }
        Some(FileOperation { call, paths })
    }

    fn open_path(&self, pid: libc::pid_t, descriptor: i32) -> Option<PathBuf> {
        let path = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
        (Path::starts_with(&path, &self.job.disk)).then_some(path)
    }
}

/// Whether a task has the same standard output as this process.
fn is_ours(pid: libc::pid_t) -> bool {
    let own = fs::read_link("/proc/self/fd/1");
    own.is_ok() && fs::read_link(format!("/proc/{pid}/fd/1")).ok() == own.ok()
}

/// Whether a `write` ends with a newline; true for all other calls.
fn ends_line(pid: libc::pid_t, number: libc::c_long, arguments: &[u64; 6]) -> bool {
    let last = arguments[1].checked_add(arguments[2]).and_then(|end| {
        let memory = Memory::of(pid).ok()?;
        memory.bytes::<1>(end.checked_sub(1)?)
    });
    number != libc::SYS_write || last == Some(*b"\n")
}
