//! `guestmark-agent syncs`: runs a program, and stops it after each call that promises that data is on its disk.
//!
//! After each such call it prints what the call has promised, as digests of blocks, and waits for a byte of standard
//! input before the program goes on: whoever logs the writes below marks that moment meanwhile. Promises are `fsync`,
//! `fdatasync`, `msync(MS_SYNC)`, `sync`, `syncfs`, and writes with `O_SYNC`, `O_DSYNC`, `RWF_SYNC` or `RWF_DSYNC`.
//! A program that may flush in another way (`io_uring`, asynchronous I/O of the kernel, another instruction set) is
//! named in the last line. Only files below `--disk` count.
//!
//! Lines, whose paths and names are hexadecimal:
//!
//! - `file ID PATH SIZE FIRST END BLOCK:DIGEST…`: the state of a file of `SIZE` bytes. Listed are the blocks that differ
//!   from the last such line of that file; digest 0 is a block of zeroes, and `?` after one says that it changed during
//!   the call. Promised are the blocks from `FIRST` to `END`; none where they are equal.
//! - `path ID PATH`: a file has another path now; `-` when it has none.
//! - `directory PATH NAME,…`: the names in it are promised.
//! - `sync CALL EXACT`: the end of a promise; `EXACT` is 1 when nothing else of the program runs now.
//! - `unsynced COUNT PATH`: so many files have data in the end that no call has promised; the path of one of them.
//! - `said TEXT`: the end of what the program wrote to its standard error.
//! - `end STATUS REASON…`: the program ended; `stopped` after as many promises or digested bytes as were allowed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a block that is digested.
const BLOCK: usize = 4096;
/// Bytes that are kept of what the program says.
const SAID: usize = 500;
/// Files that are followed at a time, each by an open descriptor.
const MOST_FILES: usize = 500;
/// `PTRACE_GET_SYSCALL_INFO` of ptrace(2), and where its answer has what is used here.
const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
const ENTRY: u64 = 1;
const EXIT: u64 = 2;
const WRITE: &str = "write";
const STOPPED: &str = "stopped";
const RWF_SYNCS: u64 = 0x2 | 0x4;
const OPTIONS: libc::c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

/// Blocks of a file by their numbers; those of zeroes are left out.
type Blocks = BTreeMap<u64, u64>;
/// Device and inode.
type Key = (u64, u64);

struct Job {
    disk: PathBuf,
    most: u64,
    bytes: u64,
    argv: Vec<OsString>,
}

/// What a call promises when it returns.
enum Promise {
    /// Bytes of a file (of a write its return value says how many), and what its blocks were when the call began, where another thread may write meanwhile.
    File(File, std::ops::Range<u64>, Option<Blocks>),
    Directory(PathBuf),
    /// All that is on the disk, and what it was when the call began, likewise.
    Everything(Option<HashMap<Key, Blocks>>),
}

struct Call {
    name: &'static str,
    promise: Promise,
}

struct Known {
    file: File,
    path: Vec<u8>,
    size: u64,
    blocks: Blocks,
}

struct Tracer {
    job: Job,
    known: HashMap<Key, (usize, Known)>,
    /// What was on the disk when the program began, and what has been promised since.
    safe: HashMap<Key, Blocks>,
    tasks: HashMap<libc::pid_t, Option<Call>>,
    /// Tasks that wait for a child, and write nothing.
    waiting: BTreeSet<libc::pid_t>,
    /// Whether the program has had the kernel write by itself, which may be under way at any time.
    asynchronous: bool,
    promises: u64,
    digested: u64,
    elsewhere: BTreeSet<&'static str>,
    lines: String,
    /// What the program writes to its standard error.
    errors: File,
}

/// Runs it; see the head of this file.
pub fn syncs(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let Some(job) = parse(arguments) else {
        eprintln!(
            "usage: guestmark-agent syncs --disk DIRECTORY [--most N] [--bytes N] -- COMMAND [ARGUMENT]..."
        );
        return Ok(ExitCode::from(125));
    };
    let mut tracer = Tracer::of(job)?;
    let status = tracer.run()?;
    tracer.finish(&status)?;
    Ok(ExitCode::SUCCESS)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Option<Job> {
    use lexopt::prelude::*;
    let mut job = Job {
        disk: PathBuf::new(),
        most: 300,
        bytes: 1 << 30,
        argv: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().ok()? {
        match argument {
            Long("disk") => job.disk = parser.value().ok()?.into(),
            Long("most") => job.most = parser.value().ok()?.parse().ok()?,
            Long("bytes") => job.bytes = parser.value().ok()?.parse().ok()?,
            Value(word) => {
                job.argv.push(word);
                job.argv.extend(parser.raw_args().ok()?);
            }
            _ => return None,
        }
    }
    (job.disk.is_absolute() && !job.argv.is_empty()).then_some(job)
}

/// A request of ptrace(2) whose arguments are numbers.
fn ptrace(
    request: libc::c_uint,
    pid: libc::pid_t,
    address: usize,
    data: usize,
) -> io::Result<libc::c_long> {
    // SAFETY: callers pass numbers, or the address and size of a buffer that they own.
    let result = unsafe { libc::ptrace(request as _, pid, address, data) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Where a program is stopped.
enum Stop {
    /// Before a call: its number, its arguments, and whether they are this instruction set's.
    Entry(libc::c_long, [u64; 6], bool),
    /// After one: what it returned, if it did not fail.
    Exit(Option<u64>),
    Neither,
}

impl Stop {
    fn of(pid: libc::pid_t) -> io::Result<Self> {
        let mut info = [0u64; 11];
        let size = std::mem::size_of_val(&info);
        match ptrace(GET_SYSCALL_INFO, pid, size, info.as_mut_ptr() as usize) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                return Self::by_registers(pid)
            }
            result => result?,
        };
        let arguments: [u64; 6] = info[4..10].try_into().expect("six");
        Ok(match info[0] & 0xff {
            ENTRY => Self::Entry(info[3] as libc::c_long, arguments, native(info[0] >> 32)),
            EXIT => Self::Exit((info[4] as u8 == 0).then_some(info[3])),
            _ => Self::Neither,
        })
    }

    /// User-Mode Linux has registers only. Before a call its result is `ENOSYS`, which no call of these returns.
    #[cfg(target_arch = "x86_64")]
    fn by_registers(pid: libc::pid_t) -> io::Result<Self> {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
        ptrace(
            libc::PTRACE_GETREGS as _,
            pid,
            0,
            registers.as_mut_ptr() as usize,
        )?;
        // SAFETY: plain numbers, which the kernel has filled in.
        let of = unsafe { registers.assume_init() };
        let result = of.rax as i64;
        if result == -i64::from(libc::ENOSYS) {
            let arguments = [of.rdi, of.rsi, of.rdx, of.r10, of.r8, of.r9];
            return Ok(Self::Entry(of.orig_rax as libc::c_long, arguments, true));
        }
        Ok(Self::Exit(
            (!(-4095..0).contains(&result)).then_some(of.rax),
        ))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn by_registers(_pid: libc::pid_t) -> io::Result<Self> {
        Err(io::Error::other(
            "this kernel does not tell a tracer which call is made",
        ))
    }
}

impl Tracer {
    fn of(job: Job) -> io::Result<Self> {
        let errors = rustix::fs::memfd_create("errors", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Self {
            errors: errors.into(),
            job,
            known: HashMap::new(),
            safe: HashMap::new(),
            tasks: HashMap::new(),
            waiting: BTreeSet::new(),
            asynchronous: false,
            promises: 0,
            digested: 0,
            elsewhere: BTreeSet::new(),
            lines: String::new(),
        })
    }

    /// Runs the program to its end, or until there were promises enough; returns how it ended.
    fn run(&mut self) -> io::Result<String> {
        self.safe = self.snapshot();
        self.digested = 0;
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
            return Ok(ended(status));
        }
        ptrace(libc::PTRACE_SETOPTIONS as _, main, 0, OPTIONS as usize)?;
        self.tasks.insert(main, None);
        resume(main, 0);
        loop {
            let (pid, status) = wait(-1)?;
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.tasks.remove(&pid);
                self.waiting.remove(&pid);
                if pid == main {
                    return Ok(ended(status));
                }
                continue;
            }
            let signal = libc::WSTOPSIG(status);
            let mut deliver = 0;
            if signal == libc::SIGTRAP | 0x80 {
                self.at_call(pid)?;
                if self.promises >= self.job.most || self.digested >= self.job.bytes {
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

    /// Whether nothing but the task that is stopped can write.
    fn alone(&self) -> bool {
        self.tasks.len() == self.waiting.len() + 1 && !self.asynchronous
    }

    fn at_call(&mut self, pid: libc::pid_t) -> io::Result<()> {
        let stop = match Stop::of(pid) {
            Ok(stop) => stop,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(error) => return Err(error),
        };
        match stop {
            Stop::Entry(number, arguments, native) => {
                if !native {
                    self.elsewhere
                        .insert("it has code for another instruction set");
                }
                if matches!(number, libc::SYS_wait4 | libc::SYS_waitid) {
                    self.waiting.insert(pid);
                }
                let call = self.entered(pid, number, &arguments);
                self.tasks.insert(pid, call);
            }
            Stop::Exit(result) => {
                self.waiting.remove(&pid);
                let call = self.tasks.insert(pid, None).flatten();
                if let (Some(call), Some(result)) = (call, result) {
                    self.returned(call, result)?;
                }
            }
            Stop::Neither => {}
        }
        Ok(())
    }

    /// What a call that begins will have promised.
    fn entered(
        &mut self,
        pid: libc::pid_t,
        number: libc::c_long,
        arguments: &[u64; 6],
    ) -> Option<Call> {
        let whole = 0..u64::MAX;
        let (name, promise) = match number {
            libc::SYS_fsync => ("fsync", self.of_descriptor(pid, arguments[0], whole)?),
            libc::SYS_fdatasync => ("fdatasync", self.of_descriptor(pid, arguments[0], whole)?),
            libc::SYS_sync => ("sync", self.of_everything()),
            libc::SYS_syncfs => {
                self.path_of(pid, arguments[0])?;
                ("syncfs", self.of_everything())
            }
            libc::SYS_msync if arguments[2] & libc::MS_SYNC as u64 != 0 => {
                ("msync", self.of_mapping(pid, arguments[0], arguments[1])?)
            }
            libc::SYS_write | libc::SYS_writev => (WRITE, self.of_write(pid, arguments, None, 0)?),
            libc::SYS_pwrite64 | libc::SYS_pwritev => {
                (WRITE, self.of_write(pid, arguments, Some(arguments[3]), 0)?)
            }
            libc::SYS_pwritev2 => {
                let at = (arguments[3] != u64::MAX).then_some(arguments[3]);
                (WRITE, self.of_write(pid, arguments, at, arguments[5])?)
            }
            libc::SYS_io_uring_setup => {
                self.asynchronous = true;
                self.elsewhere
                    .insert("it uses io_uring, whose flushes are not followed");
                return None;
            }
            libc::SYS_io_submit => {
                self.asynchronous = true;
                if asks_for_flush(pid, arguments) {
                    self.elsewhere
                        .insert("it flushes by io_submit, which is not followed");
                }
                return None;
            }
            _ => return None,
        };
        Some(Call { name, promise })
    }

    /// The path of an open file on the disk.
    fn path_of(&self, pid: libc::pid_t, descriptor: u64) -> Option<PathBuf> {
        let path = fs::read_link(format!("/proc/{pid}/fd/{}", descriptor as i32)).ok()?;
        path.starts_with(&self.job.disk).then_some(path)
    }

    fn of_descriptor(
        &mut self,
        pid: libc::pid_t,
        descriptor: u64,
        bytes: std::ops::Range<u64>,
    ) -> Option<Promise> {
        let path = self.path_of(pid, descriptor)?;
        let through = format!("/proc/{pid}/fd/{}", descriptor as i32);
        let kind = fs::metadata(&through).ok()?;
        if kind.is_dir() {
            return Some(Promise::Directory(path));
        }
        kind.is_file().then(|| self.of_file(&through, bytes))?
    }

    fn of_everything(&mut self) -> Promise {
        if self.alone() {
            return Promise::Everything(None);
        }
        Promise::Everything(Some(self.snapshot()))
    }

    /// All files on the disk that may be read.
    fn snapshot(&mut self) -> HashMap<Key, Blocks> {
        let mut found = HashMap::new();
        for path in files_below(&self.job.disk) {
            if let Some((key, blocks)) = self.content(&path) {
                found.insert(key, blocks);
            }
        }
        found
    }

    fn content(&mut self, path: &Path) -> Option<(Key, Blocks)> {
        let file = File::open(path).ok()?;
        let about = file.metadata().ok()?;
        Some(((about.dev(), about.ino()), self.digest(&file).ok()?.1))
    }

    fn of_file(&mut self, path: &str, bytes: std::ops::Range<u64>) -> Option<Promise> {
        let Ok(file) = File::open(path) else {
            self.elsewhere
                .insert("it syncs a file that may not be read");
            return None;
        };
        let before = if self.alone() {
            None
        } else {
            Some(self.digest(&file).ok()?.1)
        };
        Some(Promise::File(file, bytes, before))
    }

    fn of_mapping(&mut self, pid: libc::pid_t, address: u64, length: u64) -> Option<Promise> {
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
        self.of_file(&path, begin..begin + length)
    }

    fn of_write(
        &mut self,
        pid: libc::pid_t,
        arguments: &[u64; 6],
        at: Option<u64>,
        flags: u64,
    ) -> Option<Promise> {
        let path = self.path_of(pid, arguments[0])?;
        let info =
            fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", arguments[0] as i32)).ok()?;
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let opened = i32::from_str_radix(field("flags:")?, 8).ok()?;
        if opened & libc::O_DSYNC == 0 && flags & RWF_SYNCS == 0 {
            return None;
        }
        let begin = if opened & libc::O_APPEND != 0 {
            fs::metadata(path).ok()?.len()
        } else {
            at.or_else(|| field("pos:")?.parse().ok())?
        };
        self.of_descriptor(pid, arguments[0], begin..u64::MAX)
    }

    /// Prints what has been promised, and waits.
    fn returned(&mut self, call: Call, result: u64) -> io::Result<()> {
        match call.promise {
            Promise::File(file, bytes, before) => {
                let end = if call.name == WRITE {
                    bytes.start.saturating_add(result)
                } else {
                    bytes.end
                };
                let written = bytes.start..end;
                let before = match before {
                    Some(old) if call.name == WRITE => Some(self.as_written(&file, old, &written)?),
                    other => other,
                };
                self.observe(file, written, before.as_ref())?;
            }
            Promise::Directory(path) => self.list(&path),
            Promise::Everything(before) => {
                let disk = self.job.disk.clone();
                self.walk(&disk, before.as_ref())?;
            }
        }
        self.moved();
        let exact = u8::from(self.alone());
        let _ = writeln!(self.lines, "sync {} {exact}", call.name);
        self.promises += 1;
        self.flush()?;
        io::stdin().lock().read_exact(&mut [0])
    }

    /// What was there before a write, with what it has written itself: the blocks that it has written whole.
    fn as_written(
        &mut self,
        file: &File,
        mut old: Blocks,
        written: &std::ops::Range<u64>,
    ) -> io::Result<Blocks> {
        let block = BLOCK as u64;
        let (size, now) = self.digest(file)?;
        for number in written.start.div_ceil(block)..written.end.div_ceil(block) {
            if ((number + 1) * block).min(size) <= written.end {
                match now.get(&number) {
                    Some(digest) => old.insert(number, *digest),
                    None => old.remove(&number),
                };
            }
        }
        Ok(old)
    }

    fn observe(
        &mut self,
        file: File,
        promised: std::ops::Range<u64>,
        before: Option<&Blocks>,
    ) -> io::Result<()> {
        let about = file.metadata()?;
        let key = (about.dev(), about.ino());
        let (size, blocks) = self.digest(&file)?;
        let end = promised.end.min(size).div_ceil(BLOCK as u64);
        let first = (promised.start / BLOCK as u64).min(end);
        let safe = self.safe.entry(key).or_default();
        if first == 0 && end == size.div_ceil(BLOCK as u64) {
            safe.retain(|number, _| *number < end);
        }
        for number in safe
            .keys()
            .chain(blocks.keys())
            .copied()
            .filter(|number| (first..end).contains(number))
            .collect::<BTreeSet<_>>()
        {
            let now = blocks.get(&number);
            if before.is_none_or(|old| old.get(&number) == now) {
                match now {
                    Some(digest) => safe.insert(number, *digest),
                    None => safe.remove(&number),
                };
            }
        }
        let number = self.known.len();
        if number >= MOST_FILES && !self.known.contains_key(&key) {
            self.elsewhere
                .insert("it syncs more files than are followed");
            return Ok(());
        }
        let (id, known) = self.known.entry(key).or_insert_with(|| {
            let (path, empty) = (Vec::new(), Blocks::new());
            (
                number,
                Known {
                    file,
                    path,
                    size: 0,
                    blocks: empty,
                },
            )
        });
        known.path = path_now(&known.file, &self.job.disk);
        let _ = write!(
            self.lines,
            "file {id} {} {size} {first} {end}",
            hex(&known.path)
        );
        for number in known
            .blocks
            .keys()
            .chain(blocks.keys())
            .collect::<BTreeSet<_>>()
        {
            let now = blocks.get(number).copied().unwrap_or(0);
            let sure = before
                .as_ref()
                .is_none_or(|old| old.get(number).copied().unwrap_or(0) == now);
            if !sure || known.blocks.get(number).copied().unwrap_or(0) != now {
                let _ = write!(
                    self.lines,
                    " {number}:{now:x}{}",
                    if sure { "" } else { "?" }
                );
            }
        }
        self.lines.push('\n');
        (known.size, known.blocks) = (size, blocks);
        Ok(())
    }

    /// A file's size, and digests of its blocks as anyone reads them now.
    fn digest(&mut self, file: &File) -> io::Result<(u64, Blocks)> {
        let size = file.metadata()?.len();
        let mut blocks = Blocks::new();
        let mut buffer = vec![0; 64 * BLOCK];
        let mut at = 0;
        while at < size {
            at = match seek_data(file, at) {
                Some(data) => data / BLOCK as u64 * BLOCK as u64,
                None => break,
            };
            let length = file.read_at(&mut buffer, at)?;
            if length == 0 {
                break;
            }
            for (index, block) in buffer[..length].chunks(BLOCK).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    blocks.insert(at / BLOCK as u64 + index as u64, digest(block));
                }
            }
            self.digested += length as u64;
            at += length as u64;
        }
        Ok((size, blocks))
    }

    fn state(&mut self, path: &Path) -> io::Result<String> {
        if fs::symlink_metadata(path)?.is_dir() {
            return Ok(format!("= {}", names(path)?));
        }
        let (size, blocks) = self.digest(&File::open(path)?)?;
        Ok(blocks
            .iter()
            .fold(size.to_string(), |mut line, (number, digest)| {
                let _ = write!(line, " {number}:{digest:x}");
                line
            }))
    }

    fn list(&mut self, path: &Path) {
        if let Ok(names) = names(path) {
            let _ = writeln!(
                self.lines,
                "directory {} {names}",
                hex(path.as_os_str().as_bytes())
            );
        }
    }

    /// Promises everything below a directory; of what is not in `before`, if that is known, nothing.
    fn walk(&mut self, directory: &Path, before: Option<&HashMap<Key, Blocks>>) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(directory) else {
            return Ok(()); // such as lost+found, which is the superuser's
        };
        self.list(directory);
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.walk(&entry.path(), before)?,
                Ok(kind) if kind.is_file() => {
                    if let Ok(file) = File::open(entry.path()) {
                        let about = file.metadata()?;
                        let old = before.map(|all| all.get(&(about.dev(), about.ino())));
                        let promised = if old == Some(None) { 0..0 } else { 0..u64::MAX };
                        self.observe(file, promised, old.flatten())?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Prints which files have other paths than when they were last seen.
    fn moved(&mut self) {
        let mut moved: Vec<_> = self.known.values_mut().collect();
        moved.sort_by_key(|(id, _)| *id);
        for (id, known) in moved {
            let path = path_now(&known.file, &self.job.disk);
            if path != known.path {
                let shown = if path.is_empty() {
                    "-".to_owned()
                } else {
                    hex(&path)
                };
                let _ = writeln!(self.lines, "path {id} {shown}");
                known.path = path;
            }
        }
    }

    /// Prints how all files are in the end.
    fn finish(&mut self, status: &str) -> io::Result<()> {
        self.moved();
        let files: Vec<File> = self
            .known
            .values()
            .filter_map(|(_, known)| known.file.try_clone().ok())
            .collect();
        for file in files {
            self.observe(file, 0..0, None)?;
        }
        let unsynced = self.unsynced(status == STOPPED);
        if let Some(path) = unsynced.first() {
            let path = hex(path.as_os_str().as_bytes());
            let _ = writeln!(self.lines, "unsynced {} {path}", unsynced.len());
        }
        let mut said = vec![0; SAID];
        let size = self.errors.metadata()?.len();
        let length = self
            .errors
            .read_at(&mut said, size.saturating_sub(SAID as u64))?;
        let _ = writeln!(self.lines, "said {}", hex(&said[..length]));
        let reasons: Vec<&str> = self.elsewhere.iter().copied().collect();
        let _ = writeln!(self.lines, "end {status} {}", reasons.join("; "));
        self.flush()
    }

    /// Files that have data which no call has promised; of a program that was stopped before it could sync them, only
    /// those that it has never synced.
    fn unsynced(&mut self, stopped: bool) -> Vec<PathBuf> {
        let mut found = files_below(&self.job.disk);
        found.retain(|path| {
            let Some((key, blocks)) = self.content(path) else {
                return false;
            };
            let safe = self.safe.get(&key);
            let differs = blocks
                .iter()
                .any(|(number, digest)| safe.and_then(|safe| safe.get(number)) != Some(digest));
            differs && !(stopped && self.known.contains_key(&key))
        });
        found.sort();
        found
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.lines.as_bytes())?;
        out.flush()?;
        self.lines.clear();
        Ok(())
    }
}

/// `guestmark-agent digests`: the state of each file that standard input names in hexadecimal, a line each, as in
/// `file` above: `SIZE BLOCK:DIGEST…`, or `-` where there is no such file; of a directory `= NAME,…`.
pub fn digests(_arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let mut tracer = Tracer::of(Job {
        disk: PathBuf::from("/"),
        most: 0,
        bytes: 0,
        argv: Vec::new(),
    })?;
    for line in io::stdin().lines() {
        let bytes = unhex(&line?).ok_or(io::ErrorKind::InvalidInput)?;
        let path = Path::new(crate::sys::os_path(&bytes));
        let state = tracer.state(path).unwrap_or_else(|_| "-".to_owned());
        tracer.lines += &state;
        tracer.lines.push('\n');
    }
    tracer.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

/// The digest of a block; the last one of a file is as if zeroes followed, as a page of memory has them.
pub fn digest(block: &[u8]) -> u64 {
    let end = block
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    xxh3_64(&block[..end]).max(1)
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

fn names(directory: &Path) -> io::Result<String> {
    let mut names: Vec<String> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| hex(entry.file_name().as_bytes()))
        .collect();
    names.sort();
    Ok(names.join(","))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The path of an open file on the disk; empty when it has none any more. One whose name was removed may have others.
fn path_now(file: &File, disk: &Path) -> Vec<u8> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    let bytes = path.as_os_str().as_bytes();
    let Ok(about) = file.metadata() else {
        return bytes.to_vec();
    };
    let same = |path: &Path| {
        fs::symlink_metadata(path)
            .is_ok_and(|it| (it.dev(), it.ino()) == (about.dev(), about.ino()))
    };
    if !bytes.ends_with(b" (deleted)") || same(&path) {
        return bytes.to_vec();
    }
    if about.nlink() == 0 {
        return Vec::new();
    }
    let other = files_below(disk).into_iter().find(|path| same(path));
    other.map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec())
}

/// Where the next data begins at or after an offset; None when only a hole follows.
fn seek_data(file: &File, at: u64) -> Option<u64> {
    // SAFETY: a descriptor that is open, and numbers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
    if found >= 0 {
        return Some(found as u64);
    }
    // Where holes are not known everything is data.
    (io::Error::last_os_error().raw_os_error() != Some(libc::ENXIO)).then_some(at)
}

/// Whether `io_submit(2)` is asked for a flush: `aio_lio_opcode` of a `struct iocb` is `IOCB_CMD_FSYNC` or `FDSYNC`.
fn asks_for_flush(pid: libc::pid_t, arguments: &[u64; 6]) -> bool {
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
        return true;
    };
    let read = |at: u64, bytes: &mut [u8]| memory.read_exact_at(bytes, at).is_ok();
    (0..arguments[1].min(4096)).any(|index| {
        let (mut pointer, mut opcode) = ([0; 8], [0; 2]);
        !read(arguments[2] + index * 8, &mut pointer)
            || !read(u64::from_ne_bytes(pointer) + 16, &mut opcode)
            || matches!(u16::from_ne_bytes(opcode), 2 | 3)
    })
}

/// Whether a call was made with this program's own numbers, by an `AUDIT_ARCH`.
fn native(architecture: u64) -> bool {
    let own: u64 = if cfg!(target_arch = "x86_64") {
        0xc000_003e
    } else if cfg!(target_arch = "aarch64") {
        0xc000_00b7
    } else {
        return true;
    };
    architecture == own
}

fn resume(pid: libc::pid_t, signal: libc::c_int) {
    // One that was killed meanwhile is reported by the next wait.
    let _ = ptrace(libc::PTRACE_SYSCALL as _, pid, 0, signal as usize);
}

fn wait(pid: libc::pid_t) -> io::Result<(libc::pid_t, libc::c_int)> {
    loop {
        let mut status = 0;
        // SAFETY: the out pointer is valid.
        let found = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        if found >= 0 {
            return Ok((found, status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn ended(status: libc::c_int) -> String {
    if libc::WIFSIGNALED(status) {
        format!("{}", 128 + libc::WTERMSIG(status))
    } else {
        format!("{}", libc::WEXITSTATUS(status))
    }
}
