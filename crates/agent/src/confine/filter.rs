//! A seccomp filter for what Landlock does not know: modes, owners, times and attributes of files stay as they are.

use std::io;

use crate::sys::check;

/// Refused: whatever changes a file's metadata by its name, and by descriptor but for its mode.
const REFUSED: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    452, // fchmodat2
    463, // setxattrat
    466, // removexattrat
    469, // file_setattr
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

const SET_MODE_FILTER: libc::c_uint = 1;
/// Before 5.16 a filter slows the processor down (speculative store bypass) unless it says that it need not.
const SPEC_ALLOW: libc::c_uint = 4;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// Where the arguments are in `struct seccomp_data`; their lower halves, on machines that put these first.
const ARGUMENTS: u32 = 16;
/// System calls of the x32 kind, which are others of the same architecture.
const X32: u32 = 0x4000_0000;

/// What is refused beside changes of metadata.
#[derive(Clone, Copy)]
pub struct Refused {
    /// Cutting files off, which Landlock learned late (6.2).
    pub truncation: bool,
    /// Rings, whose operations pass by filters.
    pub io_uring: bool,
}

/// Installs it. False where the kernel has no filters, or for an architecture whose numbers are not known here.
pub fn install(refused: Refused) -> io::Result<bool> {
    let Some(architecture) = ARCHITECTURE else {
        return Ok(false);
    };
    let mut program = program(architecture, refused);
    let described = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the call, which copies it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            SPEC_ALLOW,
            &raw const described,
        )
    };
    match check(done as libc::c_int) {
        Err(error) if super::is_unavailable(&error) => Ok(false),
        other => other.map(|_| true),
    }
}

fn program(architecture: u32, refused: Refused) -> Vec<libc::sock_filter> {
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let refuse = ERRNO | libc::EPERM as u32;
    let mut program = vec![
        step(LOAD, 4, 0, 0),
        step(EQUAL, architecture, 1, 0),
        step(RETURN, refuse, 0, 0),
        step(LOAD, 0, 0, 0),
    ];
    if cfg!(target_arch = "x86_64") {
        program.push(step(AT_LEAST, X32, 0, 1));
        program.push(step(RETURN, refuse, 0, 0));
    }
    for &number in REFUSED {
        program.push(step(EQUAL, number as u32, 0, 1));
        program.push(step(RETURN, refuse, 0, 0));
    }
    let unknown = ERRNO | libc::ENOSYS as u32;
    if refused.io_uring {
        program.push(step(EQUAL, libc::SYS_io_uring_setup as u32, 0, 1));
        program.push(step(RETURN, unknown, 0, 0));
    }
    if refused.truncation {
        // Its flags are in memory, where a filter cannot look; libraries fall back to `openat`.
        program.push(step(EQUAL, libc::SYS_openat2 as u32, 0, 1));
        program.push(step(RETURN, unknown, 0, 0));
        program.push(step(EQUAL, libc::SYS_truncate as u32, 0, 1));
        program.push(step(RETURN, refuse, 0, 0));
        #[cfg(target_arch = "x86_64")]
        {
            program.push(step(EQUAL, libc::SYS_creat as u32, 0, 1));
            program.push(step(RETURN, refuse, 0, 0));
            program.extend(refuse_flag(libc::SYS_open, 1));
        }
        program.extend(refuse_flag(libc::SYS_openat, 2));
    }
    // User-Mode Linux gives its memory's file, which nobody else can open, a mode that does not matter: let it believe
    // that this was done.
    program.push(step(EQUAL, libc::SYS_fchmod as u32, 0, 1));
    program.push(step(RETURN, ERRNO, 0, 0));
    program.push(step(RETURN, ALLOW, 0, 0));
    program
}

/// Refuses `number` with `O_TRUNC` in its argument `position`; anything else of it is allowed.
fn refuse_flag(number: libc::c_long, position: u32) -> [libc::sock_filter; 5] {
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    [
        step(EQUAL, number as u32, 0, 4),
        step(LOAD, ARGUMENTS + 8 * position, 0, 0),
        step(ANY_BIT, libc::O_TRUNC as u32, 0, 1),
        step(RETURN, ERRNO | libc::EPERM as u32, 0, 0),
        step(RETURN, ALLOW, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::{program, Refused, ALLOW, ARCHITECTURE, ERRNO};

    /// What a program returns for a system call: enough of an interpreter for ours.
    fn outcome(refused: Refused, number: libc::c_long, arguments: [u64; 3]) -> u32 {
        let architecture = ARCHITECTURE.unwrap();
        let program = program(architecture, refused);
        let (mut at, mut value) = (0, 0_u32);
        loop {
            let step = program[at];
            let holds = match step.code {
                super::LOAD => {
                    value = match step.k {
                        0 => number as u32,
                        4 => architecture,
                        offset => arguments[(offset as usize - 16) / 8] as u32,
                    };
                    at += 1;
                    continue;
                }
                super::RETURN => return step.k,
                super::EQUAL => value == step.k,
                super::AT_LEAST => value >= step.k,
                super::ANY_BIT => value & step.k != 0,
                other => panic!("unknown instruction {other}"),
            };
            at += 1 + usize::from(if holds { step.jt } else { step.jf });
        }
    }

    const NOTHING: Refused = Refused {
        truncation: false,
        io_uring: false,
    };
    const ALL: Refused = Refused {
        truncation: true,
        io_uring: true,
    };
    const REFUSE: u32 = ERRNO | libc::EPERM as u32;

    #[test]
    fn metadata_is_kept_and_the_rest_allowed() {
        for refused in [NOTHING, ALL] {
            for number in [
                libc::SYS_fchmodat,
                libc::SYS_fchownat,
                libc::SYS_setxattr,
                452,
            ] {
                assert_eq!(outcome(refused, number, [0; 3]), REFUSE);
            }
            for number in [
                libc::SYS_read,
                libc::SYS_write,
                libc::SYS_execve,
                libc::SYS_openat,
            ] {
                assert_eq!(outcome(refused, number, [0; 3]), ALLOW);
            }
            assert_eq!(outcome(refused, libc::SYS_fchmod, [3, 0o777, 0]), ERRNO);
        }
    }

    #[test]
    fn files_are_not_cut_off_where_landlock_does_not_see_to_it() {
        let cut = [0, 0, (libc::O_RDONLY | libc::O_TRUNC) as u64];
        assert_eq!(outcome(NOTHING, libc::SYS_openat, cut), ALLOW);
        assert_eq!(outcome(ALL, libc::SYS_openat, cut), REFUSE);
        assert_eq!(outcome(ALL, libc::SYS_truncate, [0; 3]), REFUSE);
        assert_eq!(
            outcome(ALL, libc::SYS_openat2, [0; 3]),
            ERRNO | libc::ENOSYS as u32
        );
        assert_eq!(
            outcome(ALL, libc::SYS_io_uring_setup, [0; 3]),
            ERRNO | libc::ENOSYS as u32
        );
        assert_eq!(outcome(NOTHING, libc::SYS_io_uring_setup, [0; 3]), ALLOW);
    }
}
