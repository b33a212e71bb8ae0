//! Capabilities: dropping them, and keeping programs from gaining any.

use std::io;

use crate::sys::check;

const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const SETPCAP: u32 = 8;
const NET_RAW: u32 = 13;
const IPC_LOCK: u32 = 14;
const SYS_MODULE: u32 = 16;
const SYS_RAWIO: u32 = 17;
const SYS_CHROOT: u32 = 18;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const SYS_BOOT: u32 = 22;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const SYS_TIME: u32 = 25;
const MKNOD: u32 = 27;
const SETFCAP: u32 = 31;
const SYSLOG: u32 = 34;
const LAST: u32 = 63;

/// What hypervisors keep of root: all files can be read (also without a trace, see `O_NOATIME`), memory can be locked.
const OF_HYPERVISORS: [u32; 3] = [DAC_READ_SEARCH, FOWNER, IPC_LOCK];
/// What virtiofsd wants besides, or it does not start. Mounts, modules and other processes are not among it.
const OF_FILE_SERVERS: [u32; 11] = [
    CHOWN,
    DAC_OVERRIDE,
    FSETID,
    SETGID,
    SETUID,
    SETPCAP,
    SYS_CHROOT,
    SYS_NICE,
    SYS_RESOURCE,
    MKNOD,
    SETFCAP,
];

/// What it takes to give files the owners that they have elsewhere.
const OF_BUILDERS: [u32; 4] = [CHOWN, DAC_OVERRIDE, FSETID, SETFCAP];

/// What reaches beyond the namespaces of a program: mounts could be made writable again, and there is one clock for all.
const OF_HOST: [u32; 7] = [
    SYS_MODULE, SYS_RAWIO, SYS_ADMIN, SYS_BOOT, SYS_TIME, MKNOD, SYSLOG,
];

/// What stays allowed.
#[derive(Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each reason to keep something"
)]
pub struct Keeps {
    pub is_root: bool,
    /// Some of what it may write to belongs to other users.
    pub others_files: bool,
    pub serves_files: bool,
    pub builds_files: bool,
    /// Has sockets for whole packets, in a network namespace of its own.
    pub packets: bool,
}

impl Keeps {
    fn keeps(self, capability: u32) -> bool {
        let hypervisor = OF_HYPERVISORS.contains(&capability)
            || (self.others_files && capability == DAC_OVERRIDE);
        (self.is_root && hypervisor)
            || (self.packets && capability == NET_RAW)
            || (self.is_root && self.builds_files && OF_BUILDERS.contains(&capability))
            || (self.serves_files && (OF_FILE_SERVERS.contains(&capability) || hypervisor))
    }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Set {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

/// Leaves root, or the only user of a user namespace, what a hypervisor, a server or a builder of files needs.
pub fn drop_capabilities(left: Keeps) -> io::Result<()> {
    drop_all_but(|capability| left.keeps(capability))?;
    if !left.is_root && left.serves_files {
        for capability in (0..=LAST).filter(|&capability| left.keeps(capability)) {
            // SAFETY: plain system call; what is not permitted is refused.
            unsafe {
                libc::prctl(
                    libc::PR_CAP_AMBIENT,
                    libc::PR_CAP_AMBIENT_RAISE,
                    capability,
                    0,
                    0,
                )
            };
        }
    }
    Ok(())
}

/// Leaves root all that concerns its own namespaces.
pub fn drop_rights_over_host() -> io::Result<()> {
    drop_all_but(|capability| !OF_HOST.contains(&capability))
}

/// Leaves the right to end processes of other users, and to `look` into them, for the first process of a cage.
pub fn keep_signals(look: bool) -> io::Result<()> {
    drop_all_but(|capability| capability == KILL || (look && capability == SYS_PTRACE))
}

fn drop_all_but(keeps: impl Fn(u32) -> bool) -> io::Result<()> {
    for capability in (0..=LAST).filter(|&capability| !keeps(capability)) {
        // SAFETY: plain system call; numbers that the kernel does not know, and those of others than root, are refused.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut sets = [Set::default(); 2];
    // SAFETY: version 3 fills two sets.
    check(unsafe {
        libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) as libc::c_int
    })?;
    for capability in 0..=LAST {
        let (set, bit) = (&mut sets[capability as usize / 32], 1 << (capability % 32));
        if keeps(capability) {
            // Only what is inheritable can be passed on by others than root.
            set.inheritable |= set.permitted & bit;
        } else {
            set.effective &= !bit;
            set.permitted &= !bit;
            set.inheritable &= !bit;
        }
    }
    let kept = sets;
    // SAFETY: as above.
    check(unsafe {
        libc::syscall(libc::SYS_capset, &raw mut header, kept.as_ptr()) as libc::c_int
    })?;
    Ok(())
}

/// From now on this process is that user, in that group and no other, with what that leaves. It still ends with its
/// parent, if it did: a change of user makes the kernel forget that.
pub fn become_user(user: u32, group: u32) -> io::Result<()> {
    let mut ends_by: libc::c_int = 0;
    // SAFETY: plain system calls, one of which fills a number; this process has a single thread.
    unsafe {
        let parent = libc::getppid();
        check(libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut ends_by))?;
        check(libc::setgroups(1, &raw const group))?;
        check(libc::setresgid(group, group, group))?;
        check(libc::setresuid(user, user, user))?;
        check(libc::prctl(libc::PR_SET_PDEATHSIG, ends_by, 0, 0, 0))?;
        if ends_by != 0 && libc::getppid() != parent {
            libc::_exit(127);
        }
    }
    Ok(())
}

/// The kernel neither writes the memory of a dead process to a file nor gives it to a program of the host's: it takes
/// 1 for none in both cases. A hard limit of 0, which no plain user can raise, stays, and forbids the file alone.
pub fn disable_core_dumps() -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit outlives both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit))?;
        limit.rlim_max = limit.rlim_max.min(1);
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_CORE, &raw const limit)).map(drop)
    }
}

/// Programs that are executed from now on gain nothing by who owns their files.
pub fn forbid_new_privileges() -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}
