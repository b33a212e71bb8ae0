//! Implements the `exec` call: runs one program until all its processes have ended.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use guestmark_wire::{
    Answer, Exec, Exited, Failure, Kind, StandardOutput, Winsize, MAX_CHUNK, MAX_OUTPUT,
};

use crate::counters::Counters;
use crate::failure::{failure, os_failure};
use crate::frame::Outbox;
use crate::output::Output;
use crate::spawn::{self, Command, Step};
use crate::sys::{self, Reaped};

/// Limit of buffered standard input for a program that does not read it.
const INPUT_LIMIT: usize = 4 << 20;

/// One running program.
pub struct Job {
    /// Number of the request.
    pub id: u64,
    /// Process id, also its process group and session.
    pub pid: libc::pid_t,
    /// Time at which it is killed.
    pub deadline: Option<Instant>,
    started_ns: u64,
    timed_out: bool,
    ooms_before: Option<u64>,
    /// The write end of its standard input; `None` once closed.
    pub input: Option<OwnedFd>,
    queued: VecDeque<u8>,
    end_of_input: bool,
    /// Standard output (the terminal, if it has one) and standard error.
    pub outputs: [Output; 2],
    /// The program's ends of its pipes. Without them the kernel would hang up each pipe while the program exits, and
    /// wake us before it has ended, which delays its end on a machine with a single processor. We wait for the
    /// program's end, never for the end of a pipe.
    _theirs: Option<[OwnedFd; 3]>,
    pty: bool,
    counters: Counters,
}

impl Job {
    /// Starts the program of a request.
    pub fn start(id: u64, exec: &Exec, oom_counts: Option<&File>) -> Result<Self, Failure> {
        if exec.argv.is_empty() {
            return Err(failure(Kind::BadRequest, "no command given"));
        }
        if exec.output_limit > MAX_OUTPUT && !exec.stream && exec.pty.is_none() {
            return Err(failure(
                Kind::BadRequest,
                &format!("output_limit is above {MAX_OUTPUT}"),
            ));
        }
        let name = exec.argv[0].clone().into_vec();
        let shown = String::from_utf8_lossy(&name).into_owned();
        let mut io =
            Stdio::open(exec).map_err(|error| os_failure("cannot create pipes", &error))?;
        let command = build_command(exec, &name, io.theirs.each_ref().map(AsRawFd::as_raw_fd))?;
        if command.files.is_empty() {
            return Err(failure(
                Kind::NotFound,
                &format!("{shown}: command not found"),
            ));
        }
        for fd in io.input.iter().chain(io.outputs.iter().flatten()) {
            sys::set_nonblocking(fd.as_fd())
                .map_err(|error| os_failure("cannot set up pipes", &error))?;
        }
        let ooms_before = oom_counts.and_then(read_oom_kills);
        let counters = Counters::open(&exec.counters);
        let (pid, started_ns) = command
            .spawn()
            .map_err(|(step, error)| describe_spawn_failure(step, &error, &shown, exec))?;
        // A limit beyond the clock's range is not a limit.
        let deadline = exec
            .time_limit_ns
            .and_then(|limit| Instant::now().checked_add(Duration::from_nanos(limit)));
        drop(command);
        let live = exec.stream || exec.pty.is_some();
        let [out, err] = io.outputs.each_mut().map(Option::take);
        // We must not keep a terminal's other end open, since its hang-up tells programs that nobody is left. Nor must
        // we keep the reading end of the standard input, or we would not notice that the program has closed it.
        let keeps = exec.pty.is_none() && !exec.stdin;
        Ok(Self {
            id,
            pid,
            deadline,
            started_ns,
            timed_out: false,
            ooms_before,
            input: io.input,
            _theirs: keeps.then_some(io.theirs),
            queued: VecDeque::new(),
            end_of_input: false,
            outputs: [
                Output::new(out, 1, live, exec.output_limit, exec.tail),
                Output::new(err, 2, live, exec.output_limit, exec.tail),
            ],
            pty: exec.pty.is_some(),
            counters,
        })
    }

    /// Whether so much standard input is queued that nothing more should be read from the controller.
    pub fn is_full(&self) -> bool {
        self.input.is_some() && self.queued.len() >= INPUT_LIMIT
    }

    /// Whether standard input is queued for the program.
    pub fn has_input(&self) -> bool {
        self.input.is_some() && !self.queued.is_empty()
    }

    /// Queues bytes for the standard input.
    pub fn feed(&mut self, data: &[u8]) {
        if self.input.is_some() && !self.end_of_input {
            self.queued.extend(data);
            self.write_input();
        }
    }

    /// Marks the end of standard input.
    pub fn end_input(&mut self) {
        if self.pty {
            // A terminal's end of file is a character (Ctrl-D).
            self.feed(&[4]);
        }
        self.end_of_input = true;
        self.write_input();
    }

    /// Writes as much standard input to the program as it accepts now.
    pub fn write_input(&mut self) {
        while let Some(fd) = &self.input {
            let (front, _) = self.queued.as_slices();
            if front.is_empty() {
                if self.end_of_input && !self.pty {
                    self.input = None;
                }
                return;
            }
            match sys::write(fd.as_raw_fd(), front) {
                Ok(Some(count)) => drop(self.queued.drain(..count)),
                Ok(None) => return,
                Err(_) => {
                    self.input = None;
                    self.queued.clear();
                }
            }
        }
    }

    /// Sends a signal to its whole process group.
    pub fn signal(&self, signal: i32) {
        if sys::kill(-self.pid, signal).is_err() {
            let _ = sys::kill(self.pid, signal);
        }
    }

    /// Kills the program at its time limit.
    pub fn expire(&mut self) {
        self.timed_out = true;
        self.deadline = None;
        self.signal(libc::SIGKILL);
    }

    /// Resizes the program's terminal.
    pub fn resize(&self, size: Winsize) {
        if let (true, Some(fd)) = (self.pty, &self.input) {
            let _ = set_winsize(fd, size);
        }
    }

    /// Sends the program's output and how it ended. All its processes must have ended.
    pub fn finish(
        mut self,
        child: &Reaped,
        ended_ns: u64,
        leftovers: u32,
        oom_counts: Option<&File>,
        out: &mut Outbox,
    ) {
        for output in &mut self.outputs {
            while output.receive(self.id, out) {}
        }
        for output in &self.outputs {
            for chunk in output.kept.chunks(MAX_CHUNK) {
                out.push(&guestmark_wire::Chunk {
                    id: self.id,
                    stream: output.stream,
                    data: chunk,
                });
            }
        }
        let ooms_after = oom_counts.and_then(read_oom_kills);
        let time = |value: libc::timeval| value.tv_sec as u64 * 1_000_000 + value.tv_usec as u64;
        let (status, usage) = (child.status, &child.usage);
        let exited = Exited {
            status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
            signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
            timed_out: self.timed_out,
            oom_killed: ooms_after > self.ooms_before,
            pid: self.pid as u32,
            started_ns: self.started_ns,
            ended_ns,
            user_us: time(usage.ru_utime),
            system_us: time(usage.ru_stime),
            max_rss_kib: usage.ru_maxrss as u64,
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
            stdout_discarded: self.outputs[0].discarded(),
            stderr_discarded: self.outputs[1].discarded(),
            leftovers,
            counted: self.counters.read(),
        };
        out.push(&Answer {
            id: self.id,
            ok: exited,
        });
    }
}

/// Both ends of a program's standard descriptors.
struct Stdio {
    theirs: [OwnedFd; 3],
    input: Option<OwnedFd>,
    outputs: [Option<OwnedFd>; 2],
}

impl Stdio {
    fn open(exec: &Exec) -> io::Result<Self> {
        if let Some(size) = exec.pty {
            let (ours, theirs) = open_pty(size)?;
            let more = [theirs.try_clone()?, theirs.try_clone()?];
            let [second, third] = more;
            return Ok(Self {
                theirs: [theirs, second, third],
                input: Some(ours.try_clone()?),
                outputs: [Some(ours), None],
            });
        }
        let (input, stdin) = if exec.stdin {
            let (read, write) = sys::pipe()?;
            (Some(write), read)
        } else {
            (None, open_null(OpenOptions::new().read(true))?)
        };
        let (out, stdout) = match exec.stdout {
            StandardOutput::Pipe => {
                let (read, write) = sys::pipe()?;
                (Some(read), write)
            }
            StandardOutput::Null => (None, open_null(OpenOptions::new().write(true))?),
        };
        let (err, stderr) = sys::pipe()?;
        Ok(Self {
            theirs: [stdin, stdout, stderr],
            input,
            outputs: [out, Some(err)],
        })
    }
}

fn open_null(how: &OpenOptions) -> io::Result<OwnedFd> {
    Ok(how.open("/dev/null")?.into())
}

fn open_pty(size: Winsize) -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::pty::{grantpt, ioctl_tiocgptpeer, openpt, unlockpt, OpenptFlags};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    set_winsize(&ours, size)?;
    Ok((ours, theirs))
}

fn set_winsize(fd: &OwnedFd, size: Winsize) -> io::Result<()> {
    let size = rustix::termios::Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(fd, size)?)
}

fn build_command(exec: &Exec, name: &[u8], stdio: [i32; 3]) -> Result<Command, Failure> {
    let bad = |_| failure(Kind::BadRequest, "a string contains a zero byte");
    let strings = |list: &[serde_bytes::ByteBuf]| {
        list.iter()
            .map(|bytes| CString::new(bytes.as_slice()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(bad)
    };
    let cwd = exec.cwd.as_ref().map(|cwd| cwd.as_slice());
    if cwd.is_some_and(|cwd| !cwd.starts_with(b"/")) {
        return Err(failure(Kind::BadRequest, "cwd must be an absolute path"));
    }
    let env = match &exec.env {
        Some(env) => strings(env)?,
        None => inherited_environment(),
    };
    let path = env
        .iter()
        .find_map(|variable| variable.to_bytes().strip_prefix(b"PATH="));
    let files = spawn::list_candidates(name, path, cwd);
    let files = files
        .into_iter()
        .map(CString::new)
        .collect::<Result<_, _>>()
        .map_err(bad)?;
    Ok(Command {
        files,
        argv: strings(&exec.argv)?,
        env,
        cwd: cwd.map(CString::new).transpose().map_err(bad)?,
        uid: exec.uid,
        gid: exec.gid,
        groups: exec.groups.clone(),
        stdio: Some(stdio),
        terminal: exec.pty.is_some(),
    })
}

/// Returns the agent's own environment.
pub fn inherited_environment() -> Vec<CString> {
    use std::os::unix::ffi::OsStrExt;
    std::env::vars_os()
        .filter_map(|(name, value)| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        })
        .collect()
}

fn describe_spawn_failure(step: Step, error: &io::Error, name: &str, exec: &Exec) -> Failure {
    let (kind, message) = match (step, error.raw_os_error()) {
        (Step::Exec, Some(libc::ENOENT | libc::ENOTDIR)) => {
            let there = exec.argv.first().is_some_and(|file| {
                spawn::is_file(&spawn::resolve_within(
                    exec.cwd.as_ref().map(|cwd| cwd.as_slice()),
                    file,
                ))
            });
            let why = if there {
                "its interpreter or loader does not exist"
            } else {
                "command not found"
            };
            (Kind::NotFound, format!("{name}: {why}"))
        }
        (Step::Exec, Some(libc::EACCES | libc::EPERM)) => {
            (Kind::PermissionDenied, format!("{name}: permission denied"))
        }
        (Step::Exec, Some(libc::ENOEXEC | libc::ELIBBAD)) => {
            (Kind::BadFormat, format!("{name}: {error}"))
        }
        (Step::Exec | Step::Clone, _) => (Kind::Os, format!("cannot start {name}: {error}")),
        (Step::Chdir, _) => {
            let cwd = exec
                .cwd
                .as_ref()
                .map(|cwd| String::from_utf8_lossy(cwd).into_owned())
                .unwrap_or_default();
            (
                Kind::BadCwd,
                format!("cannot enter the working directory {cwd}: {error}"),
            )
        }
        (Step::Credentials, _) => (
            Kind::PermissionDenied,
            format!("cannot change to the user: {error}"),
        ),
        (Step::Setup, _) => (Kind::Os, format!("cannot set up the process: {error}")),
    };
    Failure {
        kind,
        message,
        errno: error.raw_os_error(),
    }
}

/// Opens the kernel's count of processes that it killed for lack of memory: the count of this process's control group,
/// since other groups of a host may run out of memory too, or that of the whole machine if there is no group.
///
/// A container sees its own group as the root, whose count it has. The true root of version 2 has none.
pub fn open_oom_counts() -> Option<File> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let file = match (fields.next()?, fields.next()?) {
            ("memory", path) => format!("/sys/fs/cgroup/memory{path}/memory.oom_control"),
            ("", path) => format!("/sys/fs/cgroup{path}/memory.events"),
            _ => return None,
        };
        File::open(file).ok()
    });
    own.or_else(|| File::open("/proc/vmstat").ok())
}

/// Reads from `open_oom_counts` how often the kernel has killed for lack of memory.
fn read_oom_kills(counts: &File) -> Option<u64> {
    use std::os::unix::fs::FileExt;
    let mut text = [0_u8; 16 << 10];
    let mut length = 0;
    while length < text.len() {
        match counts.read_at(&mut text[length..], length as u64) {
            Ok(count @ 1..) => length += count,
            _ => break,
        }
    }
    let text = std::str::from_utf8(&text[..length]).ok()?;
    let (_, after) = text.split_once("\noom_kill ")?;
    after.lines().next()?.trim().parse().ok()
}
