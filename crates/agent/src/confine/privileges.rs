//! Drops capabilities, and prevents programs from gaining any.

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

/// Capabilities that hypervisors keep: to read all files (also without changing access times, see `O_NOATIME`), and to
/// lock memory.
const OF_HYPERVISORS: [u32; 3] = [DAC_READ_SEARCH, FOWNER, IPC_LOCK];
/// Capabilities that virtiofsd needs in addition to start; those over mounts, modules and other processes are not
/// included.
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

/// Capabilities that builders of filesystems need to set the owners of files.
const OF_BUILDERS: [u32; 4] = [CHOWN, DAC_OVERRIDE, FSETID, SETFCAP];

/// Capabilities that reach beyond a program's namespaces: with them, mounts could be made writable again, or the clock
/// that all namespaces share could be set.
const OF_HOST: [u32; 7] = [
    SYS_MODULE, SYS_RAWIO, SYS_ADMIN, SYS_BOOT, SYS_TIME, MKNOD, SYSLOG,
];

/// The reasons for which a program keeps capabilities.
#[derive(Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each reason to keep something"
)]
pub struct KeptRights {
    pub is_root: bool,
    /// Some of its writable files belong to other users.
    pub others_files: bool,
    pub serves_files: bool,
    pub builds_files: bool,
    /// It has packet sockets, in a network namespace of its own.
    pub packets: bool,
}

impl KeptRights {
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
struct CapabilitySet {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

/// Drops all capabilities except those that a hypervisor, a file server or a builder of filesystems needs; applies to
/// root and to the only user of a user namespace.
pub fn drop_capabilities(left: KeptRights) -> io::Result<()> {
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

/// Drops root's rights over anything but its own namespaces.
pub fn drop_rights_over_host() -> io::Result<()> {
    drop_all_but(|capability| !OF_HOST.contains(&capability))
}

/// Drops all capabilities except those of a cage's first process: to kill other users' processes and, with `look`, to
/// inspect them.
pub fn keep_kill_capability(look: bool) -> io::Result<()> {
    drop_all_but(|capability| capability == KILL || (look && capability == SYS_PTRACE))
}

fn drop_all_but(keeps: impl Fn(u32) -> bool) -> io::Result<()> {
    for capability in (0..=LAST).filter(|&capability| !keeps(capability)) {
        // SAFETY: plain system call; the kernel refuses unknown numbers, and all of them for users other than root.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut sets = [CapabilitySet::default(); 2];
    // SAFETY: version 3 fills two sets.
    check(unsafe {
        libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) as libc::c_int
    })?;
    for capability in 0..=LAST {
        let (set, bit) = (&mut sets[capability as usize / 32], 1 << (capability % 32));
        if keeps(capability) {
            // Users other than root can pass on only inheritable capabilities.
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

/// Becomes that user, in that group and no other, with the capabilities that remain. The parent-death signal is
/// preserved: the kernel would clear it when the user changes.
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

/// Disables core dumps: the kernel neither writes them to a file nor pipes them to a program on the host, since it
/// treats a limit of 1 as none in both cases. A hard limit of 0, which a plain user cannot raise, stays, and stops only
/// the file.
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

/// Prevents programs executed from now on from gaining privileges through set-user-ID bits or file capabilities.
pub fn forbid_new_privileges() -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}
