//! Brings the system calls of all architectures into one form, so that whoever observes them knows one.
//!
//! Old architectures have calls besides those that take a directory's descriptor; 32-bit ones have others for offsets of
//! 64 bits, which they split into two arguments; s390x passes the arguments of `mmap` in memory.

use super::queues::Memory;

/// The system call that maps files; the 32-bit variant takes its offset in pages.
#[cfg(target_pointer_width = "32")]
pub const MMAP: libc::c_long = libc::SYS_mmap2;
#[cfg(target_pointer_width = "64")]
pub const MMAP: libc::c_long = libc::SYS_mmap;

/// The `AUDIT_ARCH` of this instruction set (linux/audit.h); `None` if it is not listed here.
pub const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "x86") {
    Some(0x4000_0003)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "arm") {
    Some(0x4000_0028)
} else if cfg!(all(target_arch = "powerpc64", target_endian = "little")) {
    Some(0xc000_0015)
} else if cfg!(target_arch = "riscv64") {
    Some(0xc000_00f3)
} else if cfg!(target_arch = "s390x") {
    Some(0x8000_0016)
} else if cfg!(target_arch = "sparc64") {
    Some(0x8000_002b)
} else {
    None
};

/// A call in the form that 64-bit architectures without old calls have.
pub type SystemCall = (libc::c_long, [u64; 6]);

/// Returns a call of the task `pid` in the common form.
///
/// Files are named by a directory and a path: `open` and `creat` become `openat`, `rename` and `renameat` `renameat2`,
/// `rmdir` `unlinkat`, and so on. Offsets and lengths are one argument.
pub fn normalize(pid: libc::pid_t, number: libc::c_long, arguments: &[u64; 6]) -> SystemCall {
    let call = join_halves(number, arguments);
    let call = add_directories(call);
    read_mapping(pid, call)
}

/// Adds the working directory to old calls, which take a path alone. New architectures have none of them.
#[cfg(not(any(target_arch = "aarch64", target_arch = "riscv64")))]
fn add_directories((number, a): SystemCall) -> SystemCall {
    let here = libc::AT_FDCWD as u64;
    let create = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64;
    match number {
        libc::SYS_open => (libc::SYS_openat, [here, a[0], a[1], a[2], 0, 0]),
        libc::SYS_creat => (libc::SYS_openat, [here, a[0], create, a[1], 0, 0]),
        libc::SYS_mkdir => (libc::SYS_mkdirat, [here, a[0], a[1], 0, 0, 0]),
        libc::SYS_rename => (libc::SYS_renameat2, [here, a[0], here, a[1], 0, 0]),
        libc::SYS_renameat => (libc::SYS_renameat2, [a[0], a[1], a[2], a[3], 0, 0]),
        libc::SYS_link => (libc::SYS_linkat, [here, a[0], here, a[1], 0, 0]),
        libc::SYS_symlink => (libc::SYS_symlinkat, [a[0], here, a[1], 0, 0, 0]),
        libc::SYS_unlink => (libc::SYS_unlinkat, [here, a[0], 0, 0, 0, 0]),
        libc::SYS_rmdir => {
            let flags = libc::AT_REMOVEDIR as u64;
            (libc::SYS_unlinkat, [here, a[0], flags, 0, 0, 0])
        }
        _ => (number, a),
    }
}

#[cfg(target_arch = "aarch64")]
fn add_directories((number, a): SystemCall) -> SystemCall {
    match number {
        libc::SYS_renameat => (libc::SYS_renameat2, [a[0], a[1], a[2], a[3], 0, 0]),
        _ => (number, a),
    }
}

#[cfg(target_arch = "riscv64")]
fn add_directories(call: SystemCall) -> SystemCall {
    call
}

/// Joins the halves of offsets and lengths. Calls that take old, short ones keep their form.
#[cfg(target_pointer_width = "32")]
fn join_halves(number: libc::c_long, a: &[u64; 6]) -> SystemCall {
    /// Whether a 64-bit argument begins at an even register only.
    const ALIGNED: bool = cfg!(target_arch = "arm");
    let joined = |at: usize| (a[at] & 0xffff_ffff) | (a[at + 1] << 32);
    let joined_after = |at: usize| joined(if ALIGNED { at.next_multiple_of(2) } else { at });
    match number {
        libc::SYS_truncate64 => (libc::SYS_truncate, [a[0], joined_after(1), 0, 0, 0, 0]),
        libc::SYS_ftruncate64 => (libc::SYS_ftruncate, [a[0], joined_after(1), 0, 0, 0, 0]),
        libc::SYS_sendfile64 => (libc::SYS_sendfile, *a),
        libc::SYS_pwrite64 => (number, [a[0], a[1], a[2], joined_after(3), 0, 0]),
        libc::SYS_fallocate => (number, [a[0], a[1], joined(2), joined(4), 0, 0]),
        // The kernel takes these positions in halves everywhere, and ignores the upper one where the lower has 64 bits.
        libc::SYS_pwritev | libc::SYS_pwritev2 => (number, [a[0], a[1], a[2], joined(3), 0, a[5]]),
        _ => (number, *a),
    }
}

#[cfg(target_pointer_width = "64")]
fn join_halves(number: libc::c_long, arguments: &[u64; 6]) -> SystemCall {
    (number, *arguments)
}

/// Reads the arguments of `mmap` where the program passes their address.
fn read_mapping(pid: libc::pid_t, (number, arguments): SystemCall) -> SystemCall {
    if number != MMAP || !cfg!(target_arch = "s390x") {
        return (number, arguments);
    }
    let words = Memory::of(pid)
        .ok()
        .and_then(|memory| memory.bytes::<48>(arguments[0]));
    let mut read = [0; 6];
    for (word, bytes) in read.iter_mut().zip(words.unwrap_or([0; 48]).chunks(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    }
    (number, read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(any(target_arch = "aarch64", target_arch = "riscv64")))]
    #[test]
    fn old_calls_get_the_working_directory() {
        let here = libc::AT_FDCWD as u64;
        let given = [11, 12, 13, 14, 15, 16];
        let normal = |number| normalize(1, number, &given);
        assert_eq!(
            normal(libc::SYS_open),
            (libc::SYS_openat, [here, 11, 12, 13, 0, 0])
        );
        let (number, arguments) = normal(libc::SYS_creat);
        assert_eq!(
            (number, arguments[1], arguments[3]),
            (libc::SYS_openat, 11, 12)
        );
        assert_ne!(arguments[2] & libc::O_TRUNC as u64, 0);
        assert_eq!(
            normal(libc::SYS_rename),
            (libc::SYS_renameat2, [here, 11, here, 12, 0, 0])
        );
        assert_eq!(
            normal(libc::SYS_symlink),
            (libc::SYS_symlinkat, [11, here, 12, 0, 0, 0])
        );
        assert_eq!(normal(libc::SYS_rmdir).0, libc::SYS_unlinkat);
        assert_eq!(normal(libc::SYS_write), (libc::SYS_write, given));
    }

    #[test]
    fn this_architecture_is_listed() {
        assert!(ARCHITECTURE.is_some());
    }
}
