//! Builds a seccomp filter for what namespaces and Landlock do not cover: sockets, other processes' settings, more
//! namespaces, and, where mounts are not read-only, files' modes, owners, times and attributes.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::sys::{self, check};

/// Refused for every program: opening files by handle, which bypasses mounts; mounts, namespaces and the kernel's own
/// settings; keys; descriptors and memory of other processes.
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

/// System calls for message queues, semaphores and shared memory, both System V and POSIX.
const IPC_CALLS: &[libc::c_long] = &[
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

/// Calls that are useless, and therefore refused, for programs that may not create sockets.
const OF_SOCKETS: &[libc::c_long] = &[libc::SYS_connect, libc::SYS_bind, libc::SYS_listen];

/// System calls that change settings of a process, with the position of the process id among the arguments. They are
/// allowed only for the caller itself, whose id is given as 0.
const PROCESS_SETTING_CALLS: &[(libc::c_long, u32)] = &[
    (libc::SYS_prlimit64, 0),
    (libc::SYS_setpriority, 1),
    (libc::SYS_setpriority, 0),
    (libc::SYS_ioprio_set, 1),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setattr, 0),
];

/// The `ioctl` requests that programs may make on files, terminals, disks and devices; any other fails as on a device
/// that does not know it (`ENOTTY`). A device may act on requests even if it was opened only for reading, and Landlock
/// restricts requests only since kernel 6.10.
///
/// For descriptors: `FIOCLEX`, `FIONCLEX`, `FIONBIO`, `FIOASYNC`, `FIONREAD`, `TIOCOUTQ`, `FIOQSIZE`. For terminals,
/// questions and the other end of a pair that the program has made: `TCGETS`, `TCGETS2`, `TIOCGWINSZ`, `TIOCGPGRP`,
/// `TIOCGSID`, `TIOCGPTN`, `TIOCSPTLCK`, `TIOCGPTPEER`. For files: `FIGETBSZ`, `FS_IOC_FIEMAP`, flags, version and
/// geometry, and sharing of blocks with a file that was opened for writing (`FICLONE`, `FICLONERANGE`). For disks,
/// questions, and discarding and zeroing on a disk that was opened for writing.
const ALLOWED_REQUESTS: &[u32] = &[
    0x5451,
    0x5450,
    0x5421,
    0x5452,
    0x541b,
    0x5411,
    0x5460,
    0x5401,
    0x802c_542a,
    0x5413,
    0x540f,
    0x5429,
    0x8004_5430,
    0x4004_5431,
    0x5441,
    0x0002,
    0xc020_660b,
    0x8008_6601, // FS_IOC_GETFLAGS
    0x8004_6601,
    0x8008_7601, // FS_IOC_GETVERSION
    0x801c_581f, // FS_IOC_FSGETXATTR
    0x800c_581e, // XFS_IOC_DIOINFO
    0x8100_587e, // XFS_IOC_FSGEOMETRY
    0x4004_9409,
    0x4020_940d,
    0x125e,      // BLKROGET
    0x1260,      // BLKGETSIZE
    0x1263,      // BLKRAGET
    0x1267,      // BLKSECTGET
    0x1268,      // BLKSSZGET
    0x1277,      // BLKDISCARD
    0x1278,      // BLKIOMIN
    0x1279,      // BLKIOOPT
    0x127a,      // BLKALIGNOFF
    0x127b,      // BLKPBSZGET
    0x127c,      // BLKDISCARDZEROES
    0x127e,      // BLKROTATIONAL
    0x127f,      // BLKZEROOUT
    0x8008_1270, // BLKBSZGET
    0x8008_1272, // BLKGETSIZE64
    0x8008_1280, // BLKGETDISKSEQ
    0x8004_1284, // BLKGETZONESZ
    0x8004_1285, // BLKGETNRZONES
    0x0301,      // HDIO_GETGEO
];
/// Requests that change a file's flags, version or project through a descriptor that was opened for reading, and the
/// request that flushes a disk's pages, which requires privileges. They are allowed only for programs that build
/// filesystems, whose mounts are read-only.
const OF_METADATA: &[u32] = &[
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602,
    0x401c_5820, // FS_IOC_FSSETXATTR
    0x1261,      // BLKFLSBUF
];
/// The type (the byte that identifies a driver's requests) of requests to `/dev/kvm` and to the descriptors that it
/// creates.
const OF_KVM: &[u32] = &[0xae];
/// The type of requests to `/dev/vhost-net` and `/dev/vhost-vsock`, which carry a guest's traffic for its hypervisor.
const OF_VHOST: &[u32] = &[0xaf];
/// The type of requests to sockets and network interfaces. Those to `/dev/net/tun` have the type of terminals.
const OF_NETWORK: &[u32] = &[0x89];
const OF_TUN: std::ops::RangeInclusive<u32> = 0xc8..=0xe3;
/// Requests to a tap that the program has inherited: they read its name and set its offloads and packet format. Those
/// that change its name, its owner or its persistence are not included.
const OF_TAP: &[u32] = &[
    0x8004_54cf, // TUNGETFEATURES
    0x4004_54d0, // TUNSETOFFLOAD
    0x8004_54d2, // TUNGETIFF
    0x4004_54d4, // TUNSETSNDBUF
    0x8004_54d7, // TUNGETVNETHDRSZ
    0x4004_54d8, // TUNSETVNETHDRSZ
    0x4004_54d9, // TUNSETQUEUE
    0x4004_54dc, // TUNSETVNETLE
    0x4004_54de, // TUNSETVNETBE
];
/// `TUNSETIFF`, which fails with `EEXIST` for a tap that has its interface. Cloud Hypervisor sends it to each tap and
/// expects that answer.
const SET_INTERFACE: u32 = 0x4004_54ca;
/// `IOPRIO_WHO_USER`, which is refused because it affects all processes of the user.
const OF_USER: u32 = 3;
/// Types of Unix sockets that send only to their connected peer; a datagram socket can send anywhere.
const CONNECTED: &[libc::c_int] = &[libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
const SOCKET_TYPE: u32 = 0xf;
/// `fcntl` commands to refuse: leases, which make other writers of a file wait, and notifications about directories.
/// Neither requires write access.
const REFUSED_FCNTL_COMMANDS: &[libc::c_int] = &[libc::F_SETLEASE, libc::F_NOTIFY];
/// System calls that change a file's metadata: all that do so by name, and those by descriptor except for `fchmod`.
const METADATA_CALLS: &[libc::c_long] = &[
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

/// Flags of `clone` and `unshare` for every kind of namespace but time, whose flag lies within the signal numbers.
const NAMESPACES: u32 = 0x7e02_0000;

const SET_MODE_FILTER: libc::c_uint = 1;
/// Before kernel 5.16 a filter slows the processor down (speculative store bypass) unless this flag is set.
const SPEC_ALLOW: libc::c_uint = 4;
/// The kernel passes calls to another process for a decision; since kernel 5.9 in the form used here.
const NEW_LISTENER: libc::c_uint = 8;
/// A signal does not make the kernel repeat such a request; since kernel 5.19.
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
/// Offset of the arguments in `struct seccomp_data`, and of their lower halves on little-endian machines.
const ARGUMENTS: u32 = 16;
/// Bit of the system calls of the x32 ABI, which has the same architecture number but other calls.
const X32: u32 = 0x4000_0000;

/// Groups of system calls to refuse.
#[derive(Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each thing that can be refused"
)]
pub struct Refusals {
    /// Changes of files' metadata.
    pub metadata: bool,
    /// Unix sockets.
    pub local_sockets: bool,
    /// Sockets of networks.
    pub network: bool,
    /// Message queues, semaphores and shared memory.
    pub queues: bool,
    /// Truncating files, which Landlock can restrict only since kernel 6.2.
    pub truncation: bool,
    /// `io_uring`, whose operations bypass filters.
    pub io_uring: bool,
    /// Requests to KVM.
    pub kvm: bool,
    /// Requests to taps.
    pub taps: bool,
    /// Requests to vhost, the kernel's part of virtio network cards.
    pub vhost: bool,
    /// Packet sockets.
    pub packets: bool,
    /// How `connect` is answered if sockets can be created.
    pub connections: ConnectPolicy,
}

/// How the filter answers a system call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ConnectPolicy {
    Allowed,
    /// The supervising process decides about each call.
    Asked,
    Refused,
}

/// A filter that is in effect.
pub struct InstalledFilter {
    /// The descriptor through which the kernel passes calls to the supervising process; absent on kernels before 5.9,
    /// where connections are allowed instead.
    pub questions: Option<OwnedFd>,
}

/// Installs the filter. Returns `None` if the kernel has no filters, or if the call numbers of this architecture are
/// not known here.
pub fn install(refused: Refusals) -> io::Result<Option<InstalledFilter>> {
    let Some(architecture) = ARCHITECTURE else {
        return Ok(None);
    };
    if refused.connections == ConnectPolicy::Asked {
        for flags in [NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER] {
            if let Ok(fd) = load(&mut build_program(architecture, refused), flags) {
                // SAFETY: the kernel has just made it and nobody else owns it.
                let questions = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                return Ok(Some(InstalledFilter { questions }));
            }
        }
    }
    let connections = match refused.connections {
        ConnectPolicy::Asked => ConnectPolicy::Allowed,
        other => other,
    };
    let refused = Refusals {
        connections,
        ..refused
    };
    match load(&mut build_program(architecture, refused), 0) {
        Err(error) if sys::is_unavailable(&error) => Ok(None),
        other => other.map(|_| Some(InstalledFilter { questions: None })),
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

fn make_instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn build_program(architecture: u32, refused: Refusals) -> Vec<libc::sock_filter> {
    let refuse = ERRNO | libc::EPERM as u32;
    let mut program = vec![
        make_instruction(LOAD, 4, 0, 0),
        make_instruction(EQUAL, architecture, 1, 0),
        make_instruction(RETURN, refuse, 0, 0),
        make_instruction(LOAD, 0, 0, 0),
    ];
    if cfg!(target_arch = "x86_64") {
        program.push(make_instruction(AT_LEAST, X32, 0, 1));
        program.push(make_instruction(RETURN, refuse, 0, 0));
    }
    program.extend(allow_requests(refused));
    let unknown = ERRNO | libc::ENOSYS as u32;
    let sets = [
        (true, ALWAYS),
        (refused.queues, IPC_CALLS),
        (refused.metadata, METADATA_CALLS),
        (refused.local_sockets && refused.network, OF_SOCKETS),
    ];
    for &number in sets.iter().filter(|(on, _)| *on).flat_map(|(_, set)| *set) {
        program.push(make_instruction(EQUAL, number as u32, 0, 1));
        program.push(make_instruction(RETURN, refuse, 0, 0));
    }
    if refused.io_uring {
        program.push(make_instruction(
            EQUAL,
            libc::SYS_io_uring_setup as u32,
            0,
            1,
        ));
        program.push(make_instruction(RETURN, unknown, 0, 0));
    }
    for &(number, position) in PROCESS_SETTING_CALLS {
        program.extend(refuse_unless_zero(number, position));
    }
    program.extend(refuse_value(libc::SYS_ioprio_set, 0, OF_USER));
    for &command in REFUSED_FCNTL_COMMANDS {
        program.extend(refuse_value(libc::SYS_fcntl, 1, command as u32));
    }
    let mut families = Vec::new();
    if !refused.network {
        families.extend([libc::AF_INET, libc::AF_INET6]);
    }
    if !refused.packets {
        families.push(libc::AF_PACKET);
    }
    program.extend(allow_families(&families, !refused.local_sockets));
    program.extend(allow_pairs());
    let connections = match refused.connections {
        ConnectPolicy::Allowed => ALLOW,
        ConnectPolicy::Asked => ASK,
        ConnectPolicy::Refused => refuse,
    };
    program.push(make_instruction(EQUAL, libc::SYS_connect as u32, 0, 1));
    program.push(make_instruction(RETURN, connections, 0, 0));
    program.extend(refuse_bits(libc::SYS_clone, 0, NAMESPACES));
    program.extend(refuse_bits(libc::SYS_unshare, 0, NAMESPACES));
    // Its flags are in memory, which a filter cannot read; libraries fall back to `clone`.
    program.push(make_instruction(EQUAL, libc::SYS_clone3 as u32, 0, 1));
    program.push(make_instruction(RETURN, unknown, 0, 0));
    if refused.truncation {
        // Its flags are in memory, which a filter cannot read; libraries fall back to `openat`.
        program.push(make_instruction(EQUAL, libc::SYS_openat2 as u32, 0, 1));
        program.push(make_instruction(RETURN, unknown, 0, 0));
        program.push(make_instruction(EQUAL, libc::SYS_truncate as u32, 0, 1));
        program.push(make_instruction(RETURN, refuse, 0, 0));
        #[cfg(target_arch = "x86_64")]
        {
            program.push(make_instruction(EQUAL, libc::SYS_creat as u32, 0, 1));
            program.push(make_instruction(RETURN, refuse, 0, 0));
            program.extend(refuse_bits(libc::SYS_open, 1, libc::O_TRUNC as u32));
        }
        program.extend(refuse_bits(libc::SYS_openat, 2, libc::O_TRUNC as u32));
    }
    // User-Mode Linux sets the mode of its memory file. No other process can open that file, so pretend that the call
    // succeeded.
    if refused.metadata {
        program.push(make_instruction(EQUAL, libc::SYS_fchmod as u32, 0, 1));
        program.push(make_instruction(RETURN, ERRNO, 0, 0));
    }
    program.push(make_instruction(RETURN, ALLOW, 0, 0));
    program
}

/// Allows the `ioctl` requests that are known to be needed; all others fail as on a device that does not know them.
fn allow_requests(refused: Refusals) -> Vec<libc::sock_filter> {
    let mut tests = vec![make_instruction(LOAD, ARGUMENTS + 8, 0, 0)];
    let allow = |tests: &mut Vec<_>, value| {
        tests.push(make_instruction(EQUAL, value, 0, 1));
        tests.push(make_instruction(RETURN, ALLOW, 0, 0));
    };
    // Test these first, because every entry into a virtual processor is such a request.
    if !refused.kvm {
        tests.push(make_instruction(AND, 0xff00, 0, 0));
        for &kind in OF_KVM {
            allow(&mut tests, kind << 8);
        }
        tests.push(make_instruction(LOAD, ARGUMENTS + 8, 0, 0));
    }
    for &request in ALLOWED_REQUESTS {
        allow(&mut tests, request);
    }
    if !refused.metadata {
        for &request in OF_METADATA {
            allow(&mut tests, request);
        }
    }
    if !refused.taps {
        for &request in OF_TAP {
            allow(&mut tests, request);
        }
        if refused.network {
            tests.push(make_instruction(EQUAL, SET_INTERFACE, 0, 1));
            tests.push(make_instruction(RETURN, ERRNO | libc::EEXIST as u32, 0, 0));
        }
    }
    if !refused.vhost {
        tests.push(make_instruction(AND, 0xff00, 0, 0));
        for &kind in OF_VHOST {
            allow(&mut tests, kind << 8);
        }
        tests.push(make_instruction(LOAD, ARGUMENTS + 8, 0, 0));
    }
    if !refused.network {
        tests.push(make_instruction(AND, 0xff00, 0, 0));
        for &kind in OF_NETWORK {
            allow(&mut tests, kind << 8);
        }
        tests.push(make_instruction(LOAD, ARGUMENTS + 8, 0, 0));
        tests.push(make_instruction(AND, 0xffff, 0, 0));
        for request in OF_TUN {
            allow(&mut tests, 0x5400 | request);
        }
    }
    tests.push(make_instruction(RETURN, ERRNO | libc::ENOTTY as u32, 0, 0));
    let mut program = vec![make_instruction(
        EQUAL,
        libc::SYS_ioctl as u32,
        0,
        tests.len() as u8,
    )];
    program.append(&mut tests);
    program
}

/// Refuses call `number` if its argument `position` has any of `bits`; otherwise allows it.
fn refuse_bits(number: libc::c_long, position: u32, bits: u32) -> [libc::sock_filter; 5] {
    let allowed = make_instruction(RETURN, ALLOW, 0, 0);
    refuse_where(
        number,
        position,
        make_instruction(ANY_BIT, bits, 0, 1),
        allowed,
    )
}

/// Refuses call `number` unless its argument `position` is 0; later instructions decide about other calls.
fn refuse_unless_zero(number: libc::c_long, position: u32) -> [libc::sock_filter; 5] {
    let undecided = make_instruction(LOAD, 0, 0, 0);
    refuse_where(
        number,
        position,
        make_instruction(EQUAL, 0, 1, 0),
        undecided,
    )
}

/// Refuses call `number` if its argument `position` has this value; later instructions decide about other calls.
fn refuse_value(number: libc::c_long, position: u32, value: u32) -> [libc::sock_filter; 5] {
    let undecided = make_instruction(LOAD, 0, 0, 0);
    refuse_where(
        number,
        position,
        make_instruction(EQUAL, value, 0, 1),
        undecided,
    )
}

/// Refuses call `number` if the test of its argument `position` continues; if the test skips one step, the outcome is
/// `otherwise`.
fn refuse_where(
    number: libc::c_long,
    position: u32,
    test: libc::sock_filter,
    otherwise: libc::sock_filter,
) -> [libc::sock_filter; 5] {
    [
        make_instruction(EQUAL, number as u32, 0, 4),
        make_instruction(LOAD, ARGUMENTS + 8 * position, 0, 0),
        test,
        make_instruction(RETURN, ERRNO | libc::EPERM as u32, 0, 0),
        otherwise,
    ]
}

/// Allows socket pairs, which are connected only to each other; later instructions decide about other calls.
fn allow_pairs() -> Vec<libc::sock_filter> {
    let mut tests = allow_types();
    tests.push(make_instruction(RETURN, ERRNO | libc::EPERM as u32, 0, 0));
    let number = libc::SYS_socketpair as u32;
    let mut program = vec![make_instruction(EQUAL, number, 0, tests.len() as u8)];
    program.append(&mut tests);
    program
}

/// Allows sockets, or pairs of them, of types that send only to their connected peer.
fn allow_types() -> Vec<libc::sock_filter> {
    let mut tests = vec![
        make_instruction(LOAD, ARGUMENTS + 8, 0, 0),
        make_instruction(AND, SOCKET_TYPE, 0, 0),
    ];
    for &kind in CONNECTED {
        tests.push(make_instruction(EQUAL, kind as u32, 0, 1));
        tests.push(make_instruction(RETURN, ALLOW, 0, 0));
    }
    tests
}

/// Allows sockets of these families and no others; later instructions decide about other calls.
fn allow_families(families: &[libc::c_int], local: bool) -> Vec<libc::sock_filter> {
    let mut tests = vec![make_instruction(LOAD, ARGUMENTS, 0, 0)];
    for &family in families {
        tests.push(make_instruction(EQUAL, family as u32, 0, 1));
        tests.push(make_instruction(RETURN, ALLOW, 0, 0));
    }
    if local {
        let mut types = allow_types();
        tests.push(make_instruction(
            EQUAL,
            libc::AF_UNIX as u32,
            0,
            types.len() as u8,
        ));
        tests.append(&mut types);
    }
    tests.push(make_instruction(RETURN, ERRNO | libc::EACCES as u32, 0, 0));
    let number = libc::SYS_socket as u32;
    let mut program = vec![make_instruction(EQUAL, number, 0, tests.len() as u8)];
    program.append(&mut tests);
    program
}

#[cfg(test)]
mod tests {
    use super::{
        build_program, ConnectPolicy, Refusals, ALLOW, ARCHITECTURE, ASK, ERRNO, SET_INTERFACE,
    };

    /// Returns the filter's answer to a system call, by an interpreter that is just complete enough for our filters.
    fn outcome(refused: Refusals, number: libc::c_long, arguments: [u64; 3]) -> u32 {
        let architecture = ARCHITECTURE.unwrap();
        let program = build_program(architecture, refused);
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

    const NOTHING: Refusals = Refusals {
        metadata: false,
        truncation: false,
        io_uring: false,
        local_sockets: false,
        network: false,
        queues: false,
        kvm: false,
        taps: false,
        vhost: false,
        packets: false,
        connections: ConnectPolicy::Allowed,
    };
    const METADATA: Refusals = Refusals {
        metadata: true,
        ..NOTHING
    };
    const ALL: Refusals = Refusals {
        metadata: true,
        truncation: true,
        io_uring: true,
        local_sockets: true,
        network: true,
        queues: true,
        kvm: true,
        taps: true,
        vhost: true,
        packets: true,
        connections: ConnectPolicy::Refused,
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
        let local = Refusals {
            local_sockets: false,
            ..ALL
        };
        assert_eq!(made(local, libc::AF_UNIX), ALLOW);
        assert_ne!(made(local, libc::AF_INET), ALLOW);
        let network = Refusals {
            network: false,
            ..ALL
        };
        assert_eq!(made(network, libc::AF_INET6), ALLOW);
        assert_ne!(made(network, libc::AF_UNIX), ALLOW);
        assert_ne!(made(network, libc::AF_PACKET), ALLOW);
        let packets = Refusals {
            packets: false,
            ..ALL
        };
        assert_eq!(made(packets, libc::AF_PACKET), ALLOW);
        assert_ne!(made(packets, libc::AF_INET), ALLOW);
        assert_ne!(made(NOTHING, libc::AF_NETLINK), ALLOW);
        assert_eq!(outcome(ALL, libc::SYS_connect, [3, 0, 0]), REFUSE);
        for (connections, verdict) in [
            (ConnectPolicy::Allowed, ALLOW),
            (ConnectPolicy::Asked, ASK),
            (ConnectPolicy::Refused, REFUSE),
        ] {
            let local = Refusals {
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

    const UNKNOWN: u32 = ERRNO | libc::ENOTTY as u32;

    #[test]
    fn devices_are_told_nothing_that_is_not_known_to_be_needed() {
        let asked = |refused, request: u64| outcome(refused, libc::SYS_ioctl, [3, request, 0]);
        // Loop devices, terminals (TCSETS, TIOCSWINSZ, TCSETS2, TIOCSTI, TIOCLINUX), CDROMEJECT, EVIOCGRAB, IPMI,
        // I2C, GPIO, HID, SPI, NVMe, SCSI, USB, graphics, cameras, sound, watchdogs, TPM, VFIO, vhost, sg, mei, FUSE,
        // Btrfs' snapshots
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
            0x8028_690d,
            0x0703,
            0x0720,
            0xc250_b407,
            0xc004_4806,
            0x4001_6b01,
            0xc048_4e41,
            0x2285,
            0x8038_5500,
            0x6400,
            0xc0d0_5605,
            0x4112,
            0x8004_5706,
            0x3b64,
            0xc010_4801,
            0x8004_e500,
            0x5000_9417,
            0x7000,
            0xaa3f,
            0x0932,
        ] {
            for refused in [NOTHING, METADATA, ALL] {
                assert_eq!(asked(refused, request), UNKNOWN, "{request:x}");
                // Only the lower half counts, for the kernel too.
                assert_eq!(asked(refused, request | 1 << 40), UNKNOWN, "{request:x}");
            }
        }
        // TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, BLKGETSIZE64, FS_IOC_FIEMAP, FS_IOC_GETFLAGS, FICLONE, FICLONERANGE
        for request in [
            0x5401,
            0x5413,
            0x541b,
            0x5421,
            0x8008_1272,
            0xc020_660b,
            0x8008_6601,
            0x4004_9409,
            0x4020_940d,
        ] {
            for refused in [NOTHING, METADATA, ALL] {
                assert_eq!(asked(refused, request), ALLOW, "{request:x}");
            }
        }
    }

    #[test]
    fn each_kind_of_program_has_its_own_requests() {
        let asked = |refused, request: u64| outcome(refused, libc::SYS_ioctl, [3, request, 0]);
        let but = |change: fn(&mut Refusals)| {
            let mut refused = ALL;
            change(&mut refused);
            refused
        };
        let kvm = but(|refused| refused.kvm = false);
        let network = but(|refused| refused.network = false);
        let builder = but(|refused| refused.metadata = false);
        let taps = but(|refused| refused.taps = false);
        // TUNGETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ; but not TUNSETIFF, TUNSETPERSIST, TUNSETOWNER
        for request in [0x8004_54d2, 0x4004_54d0, 0x4004_54d8] {
            assert_eq!(asked(taps, request), ALLOW, "{request:x}");
            assert_eq!(asked(kvm, request), UNKNOWN, "{request:x}");
        }
        // VHOST_SET_OWNER, VHOST_SET_MEM_TABLE, VHOST_NET_SET_BACKEND
        let vhost = but(|refused| refused.vhost = false);
        for request in [0xaf01, 0x4008_af03, 0x4008_af30] {
            assert_eq!(asked(vhost, request), ALLOW, "{request:x}");
            assert_eq!(asked(taps, request), UNKNOWN, "{request:x}");
        }
        for request in [0x4004_54cb, 0x4004_54cc, 0x8933] {
            assert_eq!(asked(taps, request), UNKNOWN, "{request:x}");
        }
        assert_eq!(
            asked(taps, SET_INTERFACE.into()),
            ERRNO | libc::EEXIST as u32
        );
        let opened = but(|refused| (refused.taps, refused.network) = (false, false));
        assert_eq!(asked(opened, SET_INTERFACE.into()), ALLOW);
        // KVM_RUN, KVM_CREATE_VM; SIOCGIFINDEX, TUNSETIFF, TUNSETVNETBE; FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
        for (may, requests) in [
            (kvm, &[0xae80, 0xae01][..]),
            (network, &[0x8933, 0x4004_54ca, 0x4004_54de]),
            (builder, &[0x4008_6602, 0x401c_5820]),
        ] {
            for &request in requests {
                assert_eq!(asked(ALL, request), UNKNOWN, "{request:x}");
                assert_eq!(asked(may, request), ALLOW, "{request:x}");
                for other in [kvm, network, builder] {
                    if other.kvm != may.kvm || other.network != may.network {
                        assert_eq!(asked(other, request), UNKNOWN, "{request:x}");
                    }
                }
            }
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
