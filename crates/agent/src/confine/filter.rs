//! A seccomp filter for what namespaces and Landlock leave: sockets, other processes' settings, more namespaces, and, where
//! mounts are not read-only, modes, owners, times and attributes of files.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::sys::check;

/// Refused of everybody: files by handle, which pass by mounts; mounts, namespaces and the kernel's own settings; keys;
/// descriptors and memory of other processes.
const ALWAYS: &[libc::c_long] = &[
    libc::SYS_open_by_handle_at,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    428, // open_tree
    429, // move_mount
    430, // fsopen
    431, // fsconfig
    432, // fsmount
    433, // fspick
    442, // mount_setattr
    467, // open_tree_attr
    438, // pidfd_getfd
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_migrate_pages,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    443, // quotactl_fd
    libc::SYS_userfaultfd,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Message queues, semaphores and shared memory by number or name.
const QUEUES: &[libc::c_long] = &[
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_msgget,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_msgsnd,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_msgrcv,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_msgctl,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_semget,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_semop,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_semtimedop,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_semctl,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_shmget,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_shmat,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_shmctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Whoever may make no sockets has no use for these.
const OF_SOCKETS: &[libc::c_long] = &[libc::SYS_connect, libc::SYS_bind, libc::SYS_listen];

/// System calls about a process, with the place of its number among the arguments: nobody's but one's own, which is 0.
const OF_OTHERS: &[(libc::c_long, u32)] = &[
    (libc::SYS_prlimit64, 0),
    (libc::SYS_setpriority, 1),
    (libc::SYS_setpriority, 0),
    (libc::SYS_ioprio_set, 1),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setattr, 0),
];

/// Requests to devices, by the byte that drivers have for theirs, that act although the device was only opened to be read,
/// and that no hypervisor makes: loop devices, for which root needs no capability, CD drives and SCSI, keyboards, graphics,
/// cameras and consoles, watchdogs, sound and USB, automatic mounts, network disks, arrays, mapped devices, clocks, faults
/// of pages, and the kernel's side of virtio, by which programs of the host listen to guests.
const OF_DEVICES: &[u32] = &[
    0x4c, 0x53, 0x22, 0x45, 0x64, 0x56, 0x4b, 0x57, 0x41, 0x55, 0x93, 0xab, 0x09, 0xfd, 0x70, 0xaa,
    0xaf,
];
/// Requests that change a file's flags, version or project, or its filesystem, by a descriptor that was opened to read.
const OF_ATTRIBUTES: &[u32] = &[0x6602, 0x7602, 0x5820];
/// Of Btrfs, whose others make snapshots, these share blocks with a file that was opened to be written.
const OF_BTRFS: u32 = 0x9400;
const SHARES_BLOCKS: &[u32] = &[0x9409, 0x940d];
/// Who may say `IOPRIO_WHO_USER` speaks of all processes of its user.
const OF_USER: u32 = 3;
/// Types of Unix sockets that send to whom they are connected; a datagram goes wherever it says.
const CONNECTED: &[libc::c_int] = &[libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
const SOCKET_TYPE: u32 = 0xf;
/// Of `fcntl`: leases, which keep whoever writes to a file waiting, and news of directories. Both take no right to write.
const OF_FILES: &[libc::c_int] = &[libc::F_SETLEASE, libc::F_NOTIFY];
/// Requests by which a program types into a terminal, has a console paste, or changes what it is: its settings, its size,
/// whose it is, its discipline, where the kernel's messages go, breaks and flow. Landlock keeps them in from 6.10 on. In order:
/// `TCSETS`, `TCSETSW`, `TCSETSF`, `TCSETA`, `TCSETAW`, `TCSETAF`, `TCSBRK`, `TCXONC`, `TCFLSH`, `TIOCEXCL`, `TIOCSCTTY`,
/// `TIOCSPGRP`, `TIOCSTI`, `TIOCSWINSZ`, `TIOCLINUX`, `TIOCCONS`, `TIOCSSERIAL`, `TIOCSETD`, `TCSBRKP`, `TIOCSBRK`, `TCSETS2`,
/// `TCSETSW2`, `TCSETSF2`.
const OF_TERMINALS: &[u32] = &[
    0x5402,
    0x5403,
    0x5404,
    0x5406,
    0x5407,
    0x5408,
    0x5409,
    0x540a,
    0x540b,
    0x540c,
    0x540e,
    0x5410,
    0x5412,
    0x5414,
    0x541c,
    0x541d,
    0x541f,
    0x5423,
    0x5425,
    0x5427,
    0x402c_542b,
    0x402c_542c,
    0x402c_542d,
];

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

/// Of `clone` and `unshare`: namespaces of every kind but that of time, whose flag is among signals' numbers.
const NAMESPACES: u32 = 0x7e02_0000;

const SET_MODE_FILTER: libc::c_uint = 1;
/// Before 5.16 a filter slows the processor down (speculative store bypass) unless it says that it need not.
const SPEC_ALLOW: libc::c_uint = 4;
/// From 5.9 on, as it is used here: somebody else is asked.
const NEW_LISTENER: libc::c_uint = 8;
/// From 5.19 on: signals do not have a question asked twice.
const WAIT_KILLABLE: libc::c_uint = 32;
const ASK: u32 = 0x7fc0_0000;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
/// Where the arguments are in `struct seccomp_data`; their lower halves, on machines that put these first.
const ARGUMENTS: u32 = 16;
/// System calls of the x32 kind, which are others of the same architecture.
const X32: u32 = 0x4000_0000;

/// What is refused.
#[derive(Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each thing that can be refused"
)]
pub struct Refused {
    /// Changes of files' metadata.
    pub metadata: bool,
    /// Sockets with names in the filesystem.
    pub local_sockets: bool,
    /// Sockets of networks.
    pub network: bool,
    /// Queues and memory that processes share by a number.
    pub queues: bool,
    /// Cutting files off, which Landlock learned late (6.2).
    pub truncation: bool,
    /// Rings, whose operations pass by filters.
    pub io_uring: bool,
    /// Connections of sockets, where some can be made.
    pub connections: Answer,
}

/// What becomes of a system call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allowed,
    /// The process that waits for the program decides.
    Asked,
    Refused,
}

/// A filter that is in force.
pub struct Installed {
    /// By which questions are asked; there is none on kernels before 5.9, where connections are allowed instead.
    pub questions: Option<OwnedFd>,
}

/// Installs it. None where the kernel has no filters, or for an architecture whose numbers are not known here.
pub fn install(refused: Refused) -> io::Result<Option<Installed>> {
    let Some(architecture) = ARCHITECTURE else {
        return Ok(None);
    };
    if refused.connections == Answer::Asked {
        for flags in [NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER] {
            if let Ok(fd) = load(&mut program(architecture, refused), flags) {
                // SAFETY: the kernel has just made it and nobody else owns it.
                let questions = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                return Ok(Some(Installed { questions }));
            }
        }
    }
    let connections = match refused.connections {
        Answer::Asked => Answer::Allowed,
        other => other,
    };
    let refused = Refused {
        connections,
        ..refused
    };
    match load(&mut program(architecture, refused), 0) {
        Err(error) if super::is_unavailable(&error) => Ok(None),
        other => other.map(|_| Some(Installed { questions: None })),
    }
}

fn load(program: &mut [libc::sock_filter], flags: libc::c_uint) -> io::Result<libc::c_int> {
    let described = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the call, which copies it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            SPEC_ALLOW | flags,
            &raw const described,
        )
    };
    check(done as libc::c_int)
}

fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn program(architecture: u32, refused: Refused) -> Vec<libc::sock_filter> {
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
    // First, as a virtual processor is run by such a request.
    program.extend(refuse_requests(refused.metadata));
    let unknown = ERRNO | libc::ENOSYS as u32;
    let sets = [
        (true, ALWAYS),
        (refused.queues, QUEUES),
        (refused.metadata, REFUSED),
        (refused.local_sockets && refused.network, OF_SOCKETS),
    ];
    for &number in sets.iter().filter(|(on, _)| *on).flat_map(|(_, set)| *set) {
        program.push(step(EQUAL, number as u32, 0, 1));
        program.push(step(RETURN, refuse, 0, 0));
    }
    if refused.io_uring {
        program.push(step(EQUAL, libc::SYS_io_uring_setup as u32, 0, 1));
        program.push(step(RETURN, unknown, 0, 0));
    }
    for &(number, position) in OF_OTHERS {
        program.extend(refuse_unless_zero(number, position));
    }
    program.extend(refuse_value(libc::SYS_ioprio_set, 0, OF_USER));
    for &command in OF_FILES {
        program.extend(refuse_value(libc::SYS_fcntl, 1, command as u32));
    }
    program.extend(allow_families(!refused.network, !refused.local_sockets));
    program.extend(allow_pairs());
    let connections = match refused.connections {
        Answer::Allowed => ALLOW,
        Answer::Asked => ASK,
        Answer::Refused => refuse,
    };
    program.push(step(EQUAL, libc::SYS_connect as u32, 0, 1));
    program.push(step(RETURN, connections, 0, 0));
    program.extend(refuse_bits(libc::SYS_clone, 0, NAMESPACES));
    program.extend(refuse_bits(libc::SYS_unshare, 0, NAMESPACES));
    // Its flags are in memory, where a filter cannot look; libraries fall back to `clone`.
    program.push(step(EQUAL, libc::SYS_clone3 as u32, 0, 1));
    program.push(step(RETURN, unknown, 0, 0));
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
            program.extend(refuse_bits(libc::SYS_open, 1, libc::O_TRUNC as u32));
        }
        program.extend(refuse_bits(libc::SYS_openat, 2, libc::O_TRUNC as u32));
    }
    // User-Mode Linux gives its memory's file, which nobody else can open, a mode that does not matter: let it believe
    // that this was done.
    if refused.metadata {
        program.push(step(EQUAL, libc::SYS_fchmod as u32, 0, 1));
        program.push(step(RETURN, ERRNO, 0, 0));
    }
    program.push(step(RETURN, ALLOW, 0, 0));
    program
}

/// Refuses requests to devices and terminals, and those that change files where `metadata` is refused; any other `ioctl`
/// is allowed.
fn refuse_requests(metadata: bool) -> Vec<libc::sock_filter> {
    let mut tests = vec![step(LOAD, ARGUMENTS + 8, 0, 0)];
    let refuse = |tests: &mut Vec<_>, value| {
        tests.push(step(EQUAL, value, 0, 1));
        tests.push(step(RETURN, ERRNO | libc::EPERM as u32, 0, 0));
    };
    for &request in OF_TERMINALS {
        refuse(&mut tests, request);
    }
    if metadata {
        tests.push(step(AND, 0xffff, 0, 0));
        for &request in OF_ATTRIBUTES {
            refuse(&mut tests, request);
        }
        for &request in SHARES_BLOCKS {
            tests.push(step(EQUAL, request, 0, 1));
            tests.push(step(RETURN, ALLOW, 0, 0));
        }
    }
    tests.push(step(AND, 0xff00, 0, 0));
    if metadata {
        refuse(&mut tests, OF_BTRFS);
    }
    for &kind in OF_DEVICES {
        refuse(&mut tests, kind << 8);
    }
    tests.push(step(RETURN, ALLOW, 0, 0));
    let mut program = vec![step(EQUAL, libc::SYS_ioctl as u32, 0, tests.len() as u8)];
    program.append(&mut tests);
    program
}

/// Refuses `number` with any of `bits` in its argument `position`; anything else of it is allowed.
fn refuse_bits(number: libc::c_long, position: u32, bits: u32) -> [libc::sock_filter; 5] {
    let allowed = step(RETURN, ALLOW, 0, 0);
    refuse_where(number, position, step(ANY_BIT, bits, 0, 1), allowed)
}

/// Refuses `number` unless its argument `position` is 0; then what follows decides.
fn refuse_unless_zero(number: libc::c_long, position: u32) -> [libc::sock_filter; 5] {
    let undecided = step(LOAD, 0, 0, 0);
    refuse_where(number, position, step(EQUAL, 0, 1, 0), undecided)
}

/// Refuses `number` with this value of its argument `position`; then what follows decides.
fn refuse_value(number: libc::c_long, position: u32, value: u32) -> [libc::sock_filter; 5] {
    let undecided = step(LOAD, 0, 0, 0);
    refuse_where(number, position, step(EQUAL, value, 0, 1), undecided)
}

/// Refuses `number` where a test of its argument `position` goes on; where it skips one step, `otherwise` is done.
fn refuse_where(
    number: libc::c_long,
    position: u32,
    test: libc::sock_filter,
    otherwise: libc::sock_filter,
) -> [libc::sock_filter; 5] {
    [
        step(EQUAL, number as u32, 0, 4),
        step(LOAD, ARGUMENTS + 8 * position, 0, 0),
        test,
        step(RETURN, ERRNO | libc::EPERM as u32, 0, 0),
        otherwise,
    ]
}

/// Pairs of sockets that reach nobody but each other; what follows decides about anything else.
fn allow_pairs() -> Vec<libc::sock_filter> {
    let mut tests = allow_types();
    tests.push(step(RETURN, ERRNO | libc::EPERM as u32, 0, 0));
    let number = libc::SYS_socketpair as u32;
    let mut program = vec![step(EQUAL, number, 0, tests.len() as u8)];
    program.append(&mut tests);
    program
}

/// Allows sockets, or pairs of them, that send nothing but to whom they are connected.
fn allow_types() -> Vec<libc::sock_filter> {
    let mut tests = vec![
        step(LOAD, ARGUMENTS + 8, 0, 0),
        step(AND, SOCKET_TYPE, 0, 0),
    ];
    for &kind in CONNECTED {
        tests.push(step(EQUAL, kind as u32, 0, 1));
        tests.push(step(RETURN, ALLOW, 0, 0));
    }
    tests
}

/// Sockets of these families, and no others; what follows decides about anything else.
fn allow_families(network: bool, local: bool) -> Vec<libc::sock_filter> {
    let mut tests = vec![step(LOAD, ARGUMENTS, 0, 0)];
    if network {
        for family in [libc::AF_INET, libc::AF_INET6] {
            tests.push(step(EQUAL, family as u32, 0, 1));
            tests.push(step(RETURN, ALLOW, 0, 0));
        }
    }
    if local {
        let mut types = allow_types();
        tests.push(step(EQUAL, libc::AF_UNIX as u32, 0, types.len() as u8));
        tests.append(&mut types);
    }
    tests.push(step(RETURN, ERRNO | libc::EACCES as u32, 0, 0));
    let number = libc::SYS_socket as u32;
    let mut program = vec![step(EQUAL, number, 0, tests.len() as u8)];
    program.append(&mut tests);
    program
}

#[cfg(test)]
mod tests {
    use super::{program, Answer, Refused, ALLOW, ARCHITECTURE, ASK, ERRNO};

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
                super::AND => {
                    value &= step.k;
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
        metadata: false,
        truncation: false,
        io_uring: false,
        local_sockets: false,
        network: false,
        queues: false,
        connections: Answer::Allowed,
    };
    const METADATA: Refused = Refused {
        metadata: true,
        ..NOTHING
    };
    const ALL: Refused = Refused {
        metadata: true,
        truncation: true,
        io_uring: true,
        local_sockets: true,
        network: true,
        queues: true,
        connections: Answer::Refused,
    };
    const REFUSE: u32 = ERRNO | libc::EPERM as u32;

    #[test]
    fn metadata_is_kept_and_the_rest_allowed() {
        for refused in [METADATA, ALL] {
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

    #[test]
    fn sockets_of_no_kind_are_made_unless_they_are_asked_for() {
        let made = |refused, family: libc::c_int| {
            outcome(refused, libc::SYS_socket, [family as u64, 1, 262])
        };
        for family in [
            libc::AF_UNIX,
            libc::AF_INET,
            libc::AF_INET6,
            libc::AF_NETLINK,
            40,
        ] {
            assert_ne!(made(ALL, family), ALLOW, "{family}");
        }
        let local = Refused {
            local_sockets: false,
            ..ALL
        };
        assert_eq!(made(local, libc::AF_UNIX), ALLOW);
        assert_ne!(made(local, libc::AF_INET), ALLOW);
        let network = Refused {
            network: false,
            ..ALL
        };
        assert_eq!(made(network, libc::AF_INET6), ALLOW);
        assert_ne!(made(network, libc::AF_UNIX), ALLOW);
        assert_ne!(made(NOTHING, libc::AF_NETLINK), ALLOW);
        assert_eq!(outcome(ALL, libc::SYS_connect, [3, 0, 0]), REFUSE);
        for (connections, verdict) in [
            (Answer::Allowed, ALLOW),
            (Answer::Asked, ASK),
            (Answer::Refused, REFUSE),
        ] {
            let local = Refused {
                connections,
                ..local
            };
            assert_eq!(outcome(local, libc::SYS_connect, [3, 0, 0]), verdict);
        }
        for (kind, may) in [(1, true), (5, true), (2, false), (3, false), (0x802, false)] {
            let asked = outcome(local, libc::SYS_socket, [libc::AF_UNIX as u64, kind, 0]);
            assert_eq!(asked == ALLOW, may, "{kind}");
        }
        for (kind, verdict) in [(1, ALLOW), (5, ALLOW), (2, REFUSE), (3, REFUSE)] {
            for flags in [0, libc::SOCK_CLOEXEC as u64, libc::SOCK_NONBLOCK as u64] {
                let pair = [1, kind | flags, 0];
                for refused in [ALL, NOTHING, network] {
                    assert_eq!(outcome(refused, libc::SYS_socketpair, pair), verdict);
                }
            }
        }
    }

    #[test]
    fn devices_that_can_be_read_are_told_nothing() {
        let asked = |request: u64| outcome(NOTHING, libc::SYS_ioctl, [3, request, 0]);
        // LOOP_SET_FD, LOOP_CLR_FD, LOOP_CTL_ADD, TCSETS, TIOCSWINSZ, TCSETS2, TIOCSTI, TIOCLINUX, CDROMEJECT, EVIOCGRAB,
        // also with upper halves
        for request in [
            0x4c00,
            0x4c01,
            0x4c80,
            0x5402,
            0x5414,
            0x402c_542b,
            0x5412,
            0x541c,
            0x5309,
            0x4004_4590,
        ] {
            assert_eq!(asked(request), REFUSE, "{request:x}");
            assert_eq!(asked(request | 1 << 40), REFUSE, "{request:x}");
        }
        // KVM_RUN, TUNSETIFF, TCGETS, TIOCGWINSZ, BLKGETSIZE64, FICLONE
        for request in [
            0xae80,
            0x4004_54ca,
            0x5401,
            0x5413,
            0x8008_1272,
            0x4004_9409,
        ] {
            assert_eq!(asked(request), ALLOW, "{request:x}");
        }
    }

    #[test]
    fn attributes_by_request_are_metadata() {
        let asked = |refused, request: u64| outcome(refused, libc::SYS_ioctl, [3, request, 0]);
        // FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, BTRFS_IOC_SNAP_CREATE_V2
        for request in [0x4008_6602, 0x401c_5820, 0x5000_9417] {
            assert_eq!(asked(METADATA, request), REFUSE, "{request:x}");
            assert_eq!(asked(NOTHING, request), ALLOW, "{request:x}");
        }
        // FS_IOC_GETFLAGS, FICLONE, FICLONERANGE
        for request in [0x8008_6601, 0x4004_9409, 0x4020_940d] {
            assert_eq!(asked(METADATA, request), ALLOW, "{request:x}");
        }
    }

    #[test]
    fn settings_of_others_are_refused_and_ones_own_allowed() {
        for refused in [NOTHING, ALL] {
            for number in [
                libc::SYS_prlimit64,
                libc::SYS_sched_setaffinity,
                libc::SYS_sched_setscheduler,
            ] {
                assert_eq!(outcome(refused, number, [1, 0, 0]), REFUSE);
                assert_eq!(outcome(refused, number, [0, 3, 0]), ALLOW);
            }
            assert_eq!(outcome(refused, libc::SYS_setpriority, [0, 7, 0]), REFUSE);
            assert_eq!(outcome(refused, libc::SYS_setpriority, [2, 0, 0]), REFUSE);
            assert_eq!(outcome(refused, libc::SYS_setpriority, [0, 0, 5]), ALLOW);
            assert_eq!(outcome(refused, libc::SYS_ioprio_set, [1, 7, 0]), REFUSE);
            assert_eq!(outcome(refused, libc::SYS_ioprio_set, [3, 0, 0]), REFUSE);
            assert_eq!(outcome(refused, libc::SYS_ioprio_set, [1, 0, 0]), ALLOW);
            assert_eq!(
                outcome(refused, libc::SYS_open_by_handle_at, [0; 3]),
                REFUSE
            );
        }
        assert_eq!(outcome(ALL, libc::SYS_msgctl, [0; 3]), REFUSE);
        assert_eq!(outcome(NOTHING, libc::SYS_msgctl, [0; 3]), ALLOW);
    }

    #[test]
    fn leases_are_refused_and_locks_are_not() {
        let asked =
            |command: libc::c_int| outcome(NOTHING, libc::SYS_fcntl, [3, command as u64, 0]);
        assert_eq!(asked(libc::F_SETLEASE), REFUSE);
        assert_eq!(asked(libc::F_NOTIFY), REFUSE);
        assert_eq!(asked(libc::F_SETLK), ALLOW);
        assert_eq!(asked(libc::F_GETFL), ALLOW);
        assert_eq!(outcome(NOTHING, libc::SYS_userfaultfd, [1, 0, 0]), REFUSE);
        assert_eq!(
            outcome(NOTHING, libc::SYS_kexec_file_load, [3, 0, 0]),
            REFUSE
        );
    }

    #[test]
    fn threads_and_processes_are_started_but_no_namespaces() {
        let thread = u64::from((libc::CLONE_VM | libc::CLONE_THREAD) as u32);
        assert_eq!(outcome(ALL, libc::SYS_clone, [thread, 0, 0]), ALLOW);
        let namespace = u64::from((libc::CLONE_NEWUSER | libc::SIGCHLD) as u32);
        assert_eq!(outcome(NOTHING, libc::SYS_clone, [namespace, 0, 0]), REFUSE);
        assert_eq!(
            outcome(NOTHING, libc::SYS_unshare, [0x2_0000, 0, 0]),
            REFUSE
        );
        assert_eq!(outcome(NOTHING, libc::SYS_unshare, [0x200, 0, 0]), ALLOW);
    }
}
