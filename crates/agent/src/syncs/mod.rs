//! `guestmark-agent syncs`: runs a program, and stops it after each call that promises that data is durable.
//!
//! After each such call it prints what the call has promised, as digests of blocks, and waits for a byte of standard
//! input before the program continues, so that the log of the writes below can mark that moment. Promises are `fsync`,
//! `fdatasync`, `msync(MS_SYNC)`, `sync`, `syncfs`, and writes with `O_SYNC`, `O_DSYNC`, `RWF_SYNC` or `RWF_DSYNC`,
//! made as calls (from memory, a pipe or another file) or through `io_uring` and `io_submit`. The last line shows
//! whether the program may flush in other ways (an `io_uring` that a kernel thread polls, another instruction set).
//! Only files below `--disk` are considered. Processes that the program leaves behind are followed for a while; if they
//! do not end, nothing is reported as unsynced, because they may sync it later.
//!
//! The lines, in which paths and names are hexadecimal:
//!
//! - `file ID PATH SIZE SURE FIRST END BLOCK:DIGEST…`: the state of a file of `SIZE` bytes, which had at least `SURE`
//!   bytes during the whole call. The line lists the blocks that differ from the previous such line of that file;
//!   digest 0 stands for a block of zeroes, and a `?` after a digest means that the block changed during the call. The
//!   promised blocks are those from `FIRST` up to, but not including, `END`; none if both are equal.
//! - `touched ID SIZE BLOCK…`: these blocks of a file may temporarily have had other contents since the last promise,
//!   and the file may have had only `SIZE` bytes.
//! - `path ID PATH`: a file has a new path; `-` if it has none.
//! - `renamed PATH PATH`: something is being renamed, from the first path to the second.
//! - `directory PATH NAME,…`: the names in a directory are promised.
//! - `sync CALL EXACT`: the end of a promise; `EXACT` is 1 if no other task of the program is running.
//! - `unsynced BYTES PATH`: at the end, a file has this many bytes (in whole blocks) that no call has promised; 0 if
//!   only its name was not promised.
//! - `said TEXT`: the end of what the program wrote to its standard error.
//! - `end STATUS REASON…`: the program ended; the status is `stopped` if the limit of promises or of digested bytes was
//!   reached.

mod abi;
mod calls;
mod changes;
mod disk;
mod files;
mod follow;
mod queues;
mod requests;
mod tracer;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::options::{read_until_command, to_io_error};
use lexopt::ValueExt;

use abi::MMAP;
use calls::{
    format_exit_code, ptrace, read_event_message, resume, wait, wait_until, Stop, TRACE_OPTIONS,
};
use changes::{
    find_change, find_renames, find_write_flags, find_written_descriptor, read_open_flags,
    truncates, truncates_on_open, Change,
};
use files::{encode_hex, key};
pub use files::{print_digests, seek_data};
pub use follow::follow;
use queues::{find_process, Queue};
use tracer::{
    Call, CallInProgress, Job, Promise, SyncFlags, Tracer, FSYNC, WITH_DATA, WITH_NAME, WRITE,
};

/// Maximum number of bytes of the program's standard error that are reported.
const SAID: usize = 500;
const STOPPED: &str = "stopped";
/// How long processes that the program leaves behind are followed.
const LEFT_FOLLOWED: Duration = Duration::from_secs(3);

/// Runs the subcommand that the head of this file describes.
pub fn trace_syncs(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let job = parse(arguments).map_err(|error| to_io_error(&error))?;
    let mut tracer = Tracer::of(job)?;
    let status = tracer.run()?;
    tracer.finish(&status)?;
    Ok(ExitCode::SUCCESS)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Job, lexopt::Error> {
    let (mut disk, mut most, mut bytes) = (PathBuf::new(), 300, 1 << 30);
    let argv = read_until_command(arguments, |name, parser| {
        match name {
            "disk" => disk = parser.value()?.into(),
            "most" => most = parser.value()?.parse()?,
            "bytes" => bytes = parser.value()?.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !disk.is_absolute() {
        return Err("--disk needs an absolute path".into());
    }
    Ok(Job {
        disk,
        most,
        bytes,
        argv,
    })
}

impl Tracer {
    /// Runs the program until it ends or a limit is reached; returns its status.
    fn run(&mut self) -> io::Result<String> {
        let mut command = Command::new(&self.job.argv[0]);
        command.args(&self.job.argv[1..]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::from(self.errors.try_clone()?));
        // SAFETY: ptrace(2) is async-signal-safe.
        unsafe {
            command.pre_exec(|| ptrace(libc::PTRACE_TRACEME as _, 0, 0, 0).map(|_| ()));
        }
        let main = command.spawn()?.id() as libc::pid_t;
        let (_, status) = wait(main)?;
        if !libc::WIFSTOPPED(status) {
            return Ok(format_exit_code(status));
        }
        ptrace(
            libc::PTRACE_SETOPTIONS as _,
            main,
            0,
            TRACE_OPTIONS as usize,
        )?;
        self.tasks.insert(main, None);
        resume(main, 0);
        let mut end: Option<(String, Instant)> = None;
        loop {
            let next = match &end {
                None => Some(wait(-1)?),
                Some((_, deadline)) => wait_until(*deadline)?,
            };
            let Some((pid, status)) = next else {
                return Ok(self.leave_processes(end));
            };
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.tasks.remove(&pid);
                self.waiting.remove(&pid);
                if pid == main {
                    end = Some((format_exit_code(status), Instant::now() + LEFT_FOLLOWED));
                }
                continue;
            }
            if status >> 16 == libc::PTRACE_EVENT_EXEC {
                // The thread that executed it has become the first one, and no end of its former self is reported.
                let former = read_event_message(pid)? as libc::pid_t;
                if former != pid {
                    self.tasks.remove(&former);
                    self.waiting.remove(&former);
                }
            }
            let signal = libc::WSTOPSIG(status);
            let mut deliver = 0;
            if signal == libc::SIGTRAP | 0x80 {
                self.stop_at_call(pid)?;
                if self.promises >= self.job.most || self.disk.digested >= self.job.bytes {
                    for pid in self.tasks.keys() {
                        // SAFETY: a signal to a process that is traced, whose number is its own until it is waited for.
                        unsafe { libc::kill(*pid, libc::SIGKILL) };
                    }
                    return Ok(STOPPED.to_owned());
                }
            } else if self.tasks.contains_key(&pid) && status >> 16 == 0 {
                deliver = signal;
            }
            self.tasks.entry(pid).or_insert(None); // a new one begins with a stop of its own
            resume(pid, deliver);
        }
    }

    /// Notes whether the program has left processes behind, and returns its status.
    fn leave_processes(&mut self, end: Option<(String, Instant)>) -> String {
        if !self.tasks.is_empty() {
            self.disk
                .elsewhere
                .insert("it ended and left processes running, which may sync later");
            self.disk.is_left_open = true;
        }
        end.map(|(status, _)| status).unwrap_or_default()
    }

    fn stop_at_call(&mut self, pid: libc::pid_t) -> io::Result<()> {
        let stop = match Stop::of(pid) {
            Ok(stop) => stop,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(error) => return Err(error),
        };
        match stop {
            Stop::Entry(number, arguments, native) => {
                self.collect()?;
                if !native {
                    // Its numbers mean other calls: i386's nanosleep is x86-64's sync.
                    self.disk
                        .elsewhere
                        .insert("it runs code for another instruction set");
                    self.tasks.insert(pid, None);
                    return Ok(());
                }
                if matches!(number, libc::SYS_wait4 | libc::SYS_waitid) {
                    self.waiting.insert(pid);
                }
                let begun = self.enter_call(pid, number, &arguments);
                self.tasks.insert(pid, begun);
            }
            Stop::Exit(result) => {
                self.waiting.remove(&pid);
                let begun = self.tasks.insert(pid, None).flatten();
                if let Some(begun) = begun {
                    self.leave_call(pid, begun, result)?;
                }
                self.collect()?;
            }
            Stop::Neither => {}
        }
        Ok(())
    }

    /// Handles the start of a call.
    fn enter_call(
        &mut self,
        pid: libc::pid_t,
        number: libc::c_long,
        arguments: &[u64; 6],
    ) -> Option<CallInProgress> {
        let whole = 0..u64::MAX;
        let change = find_change(pid, number, arguments, &self.job.disk);
        if let Some(change) = &change {
            self.note_change(change);
            if truncates(number) {
                self.disk.note_truncation(change.key, change.bytes.start);
            }
        }
        if let Some(renames) = find_renames(pid, number, arguments, &self.job.disk) {
            self.disk.report_renames(renames);
        }
        let promise = match number {
            libc::SYS_fsync => (
                FSYNC,
                self.make_descriptor_promise(pid, arguments[0], whole),
            ),
            libc::SYS_fdatasync => (
                "fdatasync",
                self.make_descriptor_promise(pid, arguments[0], whole),
            ),
            libc::SYS_sync => ("sync", Some(self.make_full_promise())),
            libc::SYS_syncfs => {
                self.path_of(pid, arguments[0] as i32)?;
                ("syncfs", Some(self.make_full_promise()))
            }
            libc::SYS_msync if arguments[2] & libc::MS_SYNC as u64 != 0 => (
                "msync",
                self.make_mapping_promise(pid, arguments[0], arguments[1]),
            ),
            MMAP => {
                self.map(pid, arguments);
                return None;
            }
            libc::SYS_io_uring_setup => return Some(CallInProgress::Uring(arguments[1])),
            libc::SYS_io_uring_enter => {
                self.hand_over_rings(pid);
                return Some(CallInProgress::Entered);
            }
            libc::SYS_io_uring_register => {
                self.register(pid, arguments);
                return None;
            }
            libc::SYS_io_setup => return Some(CallInProgress::Context(arguments[1])),
            libc::SYS_io_submit => {
                self.hand_over_context(pid, arguments);
                return Some(CallInProgress::Submitted(arguments[0]));
            }
            _ if truncates_on_open(pid, number, arguments) => {
                return Some(CallInProgress::Emptying)
            }
            _ => match &change {
                Some(change) => (
                    WRITE,
                    self.make_write_promise(pid, number, arguments, change),
                ),
                None => return None,
            },
        };
        match (promise, change) {
            ((name, Some(promise)), change) => Some(CallInProgress::Promising(Call {
                promises_name: name == FSYNC
                    || (name == WRITE && writes_through(pid, number, arguments, WITH_NAME)),
                name,
                promise,
                change,
                disturbed: self.list_changes_under_way(pid),
            })),
            (_, Some(change)) => Some(CallInProgress::Changing(change)),
            _ => None,
        }
    }

    /// Notes a file that is mapped for writing: it may change without a call.
    fn map(&mut self, pid: libc::pid_t, arguments: &[u64; 6]) {
        let shared =
            [libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE].contains(&(arguments[3] as i32 & 0xf));
        let written = arguments[2] & libc::PROT_WRITE as u64 != 0;
        let through = format!("/proc/{pid}/fd/{}", arguments[4] as i32);
        if shared && written && self.path_of(pid, arguments[4] as i32).is_some() {
            if let Ok(about) = fs::metadata(through) {
                self.disk.note_mapping(key(&about));
            }
        }
    }

    /// Handles the end of a call; `result` is absent if it failed.
    fn leave_call(
        &mut self,
        pid: libc::pid_t,
        begun: CallInProgress,
        result: Option<u64>,
    ) -> io::Result<()> {
        match (begun, result) {
            (CallInProgress::Promising(call), Some(result)) => {
                let exact = self.writes_alone();
                self.report_promise(call, result, exact)?;
            }
            (CallInProgress::Uring(parameters), Some(descriptor)) => {
                let queue = Queue::follow_uring(find_process(pid), descriptor as i32, parameters);
                self.follow(queue.ok());
            }
            (CallInProgress::Context(pointer), Some(_)) => {
                self.follow(Queue::follow_context(find_process(pid), pointer));
            }
            (CallInProgress::Changing(change), _) => self.note_change(&change),
            (CallInProgress::Emptying, Some(descriptor)) => {
                let about = fs::metadata(format!("/proc/{pid}/fd/{descriptor}"));
                if let Ok(about) = about {
                    self.disk.note_truncation(key(&about), 0);
                    self.note_change(&Change {
                        key: key(&about),
                        bytes: 0..u64::MAX,
                        shorter: true,
                    });
                }
            }
            (CallInProgress::Entered, _) => {
                self.queues.iter_mut().for_each(|one| one.queue.taken());
            }
            (CallInProgress::Submitted(context), result) => {
                let process = find_process(pid);
                let mut queues = self.queues.iter_mut();
                if let Some(one) = queues.find(|one| one.queue.is_context(process, context)) {
                    one.queue.accepted(result.unwrap_or(0));
                }
            }
            (CallInProgress::Promising(call), None) => {
                if let Some(change) = &call.change {
                    self.note_change(change);
                }
            }
            (
                CallInProgress::Uring(_) | CallInProgress::Context(_) | CallInProgress::Emptying,
                None,
            ) => {}
        }
        Ok(())
    }

    fn make_descriptor_promise(
        &mut self,
        pid: libc::pid_t,
        descriptor: u64,
        bytes: Range<u64>,
    ) -> Option<Promise> {
        let target = self.find_target(pid, descriptor as i32)?;
        if target.directory {
            return Some(self.make_directory_promise(target.path));
        }
        self.make_file_promise(target.file, bytes)
    }

    fn make_full_promise(&mut self) -> Promise {
        if self.writes_alone() {
            return Promise::Everything(None);
        }
        Promise::Everything(Some(self.disk.snapshot()))
    }

    fn make_mapping_promise(
        &mut self,
        pid: libc::pid_t,
        address: u64,
        length: u64,
    ) -> Option<Promise> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let (start, offset, path) = maps.lines().find_map(|line| {
            let mut words = line.splitn(6, ' ');
            let (from, to) = words.next()?.split_once('-')?;
            let (from, to) = (
                u64::from_str_radix(from, 16).ok()?,
                u64::from_str_radix(to, 16).ok()?,
            );
            let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
            let path = words.nth(2)?.trim_start();
            (from..to)
                .contains(&address)
                .then(|| (from, offset, path.to_owned()))
        })?;
        if !Path::new(&path).starts_with(&self.job.disk) {
            return None;
        }
        let begin = address - start + offset;
        let file = self.open_promised(Path::new(&path))?;
        self.make_file_promise(file, begin..begin + length)
    }

    fn make_write_promise(
        &mut self,
        pid: libc::pid_t,
        number: libc::c_long,
        arguments: &[u64; 6],
        change: &Change,
    ) -> Option<Promise> {
        let descriptor = find_written_descriptor(number, arguments)?;
        if !writes_through(pid, number, arguments, WITH_DATA) {
            return None;
        }
        let file = self.find_target(pid, descriptor)?.file;
        self.make_file_promise(file, change.bytes.clone())
    }

    /// Reports how the program ended.
    fn finish(&mut self, status: &str) -> io::Result<()> {
        self.disk.finish(status == STOPPED)?;
        let mut said = vec![0; SAID];
        let size = self.errors.metadata()?.len();
        let length = self
            .errors
            .read_at(&mut said, size.saturating_sub(SAID as u64))?;
        let reasons: Vec<&str> = self.disk.elsewhere.iter().copied().collect();
        let reasons = reasons.join("; ");
        let _ = writeln!(self.disk.lines, "said {}", encode_hex(&said[..length]));
        let _ = writeln!(self.disk.lines, "end {status} {reasons}");
        self.disk.flush()
    }
}

/// Whether a call writes with one of these flags, its own or those of its file.
fn writes_through(
    pid: libc::pid_t,
    number: libc::c_long,
    arguments: &[u64; 6],
    flags: SyncFlags,
) -> bool {
    let opened = find_written_descriptor(number, arguments)
        .and_then(|descriptor| read_open_flags(pid, descriptor));
    flags.are_in(
        opened.map_or(0, |(opened, _)| opened),
        find_write_flags(number, arguments),
    )
}
