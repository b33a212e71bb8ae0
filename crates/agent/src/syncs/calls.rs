//! Observes a program's system calls by means of ptrace(2).

use std::io;
use std::time::{Duration, Instant};

use super::abi::{normalize, ARCHITECTURE};

/// `PTRACE_GET_SYSCALL_INFO` of ptrace(2), and the operations in its answer.
const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
const ENTRY: u8 = 1;
const EXIT: u8 = 2;

/// Options for every traced task: its children are traced too, and none of them outlives the tracer.
pub const TRACE_OPTIONS: libc::c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

/// The pause between two checks for the end of processes that may never end.
const WAIT_STEP: Duration = Duration::from_millis(1);

/// Returns the message of a task's last event: the former number of a thread that has executed a program, for instance.
pub fn read_event_message(pid: libc::pid_t) -> io::Result<libc::c_ulong> {
    let mut message: libc::c_ulong = 0;
    let address = std::ptr::from_mut(&mut message) as usize;
    ptrace(libc::PTRACE_GETEVENTMSG as _, pid, 0, address)?;
    Ok(message)
}

/// Calls ptrace(2) with arguments that are numbers.
pub fn ptrace(
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

/// `struct ptrace_syscall_info` of linux/ptrace.h, in words of 64 bits, some of which have smaller fields.
///
/// From the fourth word on it has the call's number and its arguments, or its result and whether that is an error.
struct SyscallInfo([u64; 11]);

impl SyscallInfo {
    /// The first byte.
    fn operation(&self) -> u8 {
        self.0[0].to_ne_bytes()[0]
    }

    /// The `AUDIT_ARCH`, in the second half of the first word.
    fn architecture(&self) -> u32 {
        let bytes = self.0[0].to_ne_bytes();
        u32::from_ne_bytes(bytes[4..].try_into().expect("four bytes"))
    }

    fn arguments(&self) -> [u64; 6] {
        self.0[4..10].try_into().expect("six")
    }

    /// A byte behind the result.
    fn is_error(&self) -> bool {
        self.0[4].to_ne_bytes()[0] != 0
    }
}

/// Where a task is stopped.
pub enum Stop {
    /// Before a call: its number and its arguments in the common form, and whether it is of this instruction set.
    Entry(libc::c_long, [u64; 6], bool),
    /// After a call: its result, if it did not fail.
    Exit(Option<u64>),
    /// Elsewhere.
    Neither,
}

impl Stop {
    /// Finds out where a task is stopped.
    pub fn of(pid: libc::pid_t) -> io::Result<Self> {
        let mut info = SyscallInfo([0; 11]);
        let size = std::mem::size_of_val(&info);
        match ptrace(GET_SYSCALL_INFO, pid, size, info.0.as_mut_ptr() as usize) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                return Self::read_registers(pid)
            }
            result => result?,
        };
        Ok(match info.operation() {
            ENTRY => {
                let (number, arguments) =
                    normalize(pid, info.0[3] as libc::c_long, &info.arguments());
                Self::Entry(number, arguments, is_native(info.architecture()))
            }
            EXIT => Self::Exit((!info.is_error()).then_some(info.0[3])),
            _ => Self::Neither,
        })
    }

    /// Reads the registers, since User-Mode Linux offers nothing else. Before a call the result register contains
    /// `ENOSYS`, which none of these calls returns.
    #[cfg(target_arch = "x86_64")]
    fn read_registers(pid: libc::pid_t) -> io::Result<Self> {
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
            let (number, arguments) = normalize(pid, of.orig_rax as libc::c_long, &arguments);
            return Ok(Self::Entry(number, arguments, true));
        }
        Ok(Self::Exit(
            (!(-4095..0).contains(&result)).then_some(of.rax),
        ))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn read_registers(_pid: libc::pid_t) -> io::Result<Self> {
        Err(io::Error::other(
            "this kernel does not show a tracer which system call is made",
        ))
    }
}

/// Whether an `AUDIT_ARCH` is this instruction set's, so that the call has the call numbers known here.
fn is_native(architecture: u32) -> bool {
    ARCHITECTURE.is_none_or(|own| architecture == own)
}

/// Resumes a task until its next call, and delivers a signal to it unless `signal` is 0.
pub fn resume(pid: libc::pid_t, signal: libc::c_int) {
    // The next wait reports a process that was killed in the meantime.
    let _ = ptrace(libc::PTRACE_SYSCALL as _, pid, 0, signal as usize);
}

/// Waits for the next stop or the end of a task (of any, if `pid` is -1); returns its id and its wait status.
pub fn wait(pid: libc::pid_t) -> io::Result<(libc::pid_t, libc::c_int)> {
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

/// Like `wait`, but returns `None` if nothing has happened by the deadline, or if there is nothing left to wait for.
pub fn wait_until(deadline: Instant) -> io::Result<Option<(libc::pid_t, libc::c_int)>> {
    loop {
        let mut status = 0;
        // SAFETY: the out pointer is valid.
        let found = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if found > 0 {
            return Ok(Some((found, status)));
        }
        if found == 0 {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(WAIT_STEP);
            continue;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ECHILD) => return Ok(None),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

/// Formats a wait status as the exit code that a shell would show.
pub fn format_exit_code(status: libc::c_int) -> String {
    if libc::WIFSIGNALED(status) {
        format!("{}", 128 + libc::WTERMSIG(status))
    } else {
        format!("{}", libc::WEXITSTATUS(status))
    }
}
