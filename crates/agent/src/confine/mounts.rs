//! Sets up a mount namespace in which everything except a few paths is read-only.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::{self, check, make_cstring};

const AT_RECURSIVE: libc::c_uint = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NODEV: u64 = 4;
const OPEN_TREE_CLONE: libc::c_uint = 1;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const NO_DEVICES: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV;
pub const TEMPORARY: &CStr = c"/tmp";
pub const MEMORY: &CStr = c"/dev/shm";
const TERMINALS: &CStr = c"/dev/pts";
const MASTERS: &CStr = c"/dev/ptmx";
const OWN_MASTERS: &CStr = c"/dev/pts/ptmx";

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Which paths stay writable, and which filesystems the program gets for itself.
#[derive(Default)]
pub struct Layout<'a> {
    pub writable: &'a [CString],
    /// An empty directory for the program's changes to `/tmp`; the rest of `/tmp` stays readable.
    pub over_temporary: Option<&'a CStr>,
    /// Other directories to hide in the same way; missing ones are skipped.
    pub covered: &'a [&'a CStr],
    /// Whether it has a `/dev/shm` of its own.
    pub own_memory: bool,
    /// Limit in bytes for `/tmp` and the covered directories together, and likewise for its own `/dev/shm`.
    pub memory_size: Option<u64>,
    /// The only devices that it can open (missing ones are skipped); `None` allows all. A read-only mount does not
    /// prevent writing to the disk behind a device.
    pub devices: Option<&'a [&'a CStr]>,
    /// Maximum number of its processes, if the kernel can limit those of a namespace.
    pub processes: Option<u32>,
}

/// What was mounted; nothing if namespaces are not available.
#[derive(Default)]
pub struct AppliedMounts {
    pub read_only: bool,
    pub over_temporary: bool,
    pub own_memory: bool,
}

/// Makes every mount of this process's own namespace read-only except as the layout says. `/proc` shows only the
/// processes of the cage; there are no terminals.
pub fn make_read_only(layout: &Layout<'_>) -> io::Result<AppliedMounts> {
    if !has_mount_setattr() {
        return Ok(AppliedMounts::default());
    }
    match mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None) {
        // Some distributions grant no capabilities in user namespaces.
        Err(error) if sys::is_unavailable(&error) => return Ok(AppliedMounts::default()),
        other => other?,
    }
    // A container whose `/proc` is partly hidden does not allow a full one to be mounted.
    let flags = NO_DEVICES | libc::MS_NOEXEC;
    if !allow_unavailable(mount(Some(c"proc"), c"/proc", Some(c"proc"), flags, None))? {
        return Ok(AppliedMounts::default());
    }
    if let Some(most) = layout.processes {
        limit_processes(most);
    }
    let mut openable = Vec::new();
    if is_there(TERMINALS) {
        let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
        let options = c"newinstance,ptmxmode=0666,mode=0600";
        if allow_unavailable(mount(
            Some(c"devpts"),
            TERMINALS,
            Some(c"devpts"),
            flags,
            Some(options),
        ))? {
            openable.push(TERMINALS);
            if layout.devices.is_some() && is_there(MASTERS) {
                // The kernel looks for the terminals next to this file, within the same mount.
                move_mount(&open_tree(OWN_MASTERS)?, MASTERS)?;
                openable.push(MASTERS);
            }
        }
    }
    for device in layout.devices.unwrap_or_default() {
        // Each device gets a mount of its own, whose attributes can differ from those of /dev.
        if is_there(device) {
            move_mount(&open_tree(device)?, device)?;
            openable.push(device);
        }
    }
    // Take these before anything is mounted over them.
    let trees = layout
        .writable
        .iter()
        .map(|path| open_tree(path))
        .collect::<io::Result<Vec<_>>>()?;
    let mut writable: Vec<&CStr> = layout.writable.iter().map(CString::as_c_str).collect();
    let mut done = AppliedMounts {
        read_only: true,
        ..AppliedMounts::default()
    };
    if let Some(directory) = layout.over_temporary {
        done.over_temporary = cover_temporary(directory, layout, &mut writable)?;
        writable.push(TEMPORARY);
    }
    if layout.own_memory {
        done.own_memory = allow_unavailable(mount(
            Some(c"memory"),
            MEMORY,
            Some(c"tmpfs"),
            NO_DEVICES,
            Some(&limit_memory("mode=1777", layout.memory_size)?),
        ))?;
        writable.push(MEMORY);
    }
    for (tree, path) in trees.iter().zip(layout.writable) {
        move_mount(tree, path)?;
    }
    let without_devices = if layout.devices.is_some() {
        MOUNT_ATTR_NODEV
    } else {
        openable.clear();
        0
    };
    let restricted = Attributes {
        set: MOUNT_ATTR_RDONLY | without_devices,
        ..Attributes::default()
    };
    set_attributes(c"/", AT_RECURSIVE, &restricted)?;
    clear_attribute(MOUNT_ATTR_RDONLY, &writable)?;
    clear_attribute(MOUNT_ATTR_NODEV, &openable)?;
    // Enter the working directory again: it still refers to the mount below, which is read-only now.
    std::env::set_current_dir(std::env::current_dir()?)?;
    Ok(done)
}

/// Returns the mount options of a filesystem in memory.
fn limit_memory(options: &str, size: Option<u64>) -> io::Result<CString> {
    let size = size.map_or(String::new(), |bytes| format!(",size={bytes}"));
    make_cstring(format!("{options}{size}").as_bytes())
}

fn is_there(path: &CStr) -> bool {
    std::path::Path::new(sys::as_os_path(path.to_bytes())).exists()
}

fn clear_attribute(attribute: u64, paths: &[&CStr]) -> io::Result<()> {
    let cleared = Attributes {
        clear: attribute,
        ..Attributes::default()
    };
    for path in paths {
        match set_attributes(path, 0, &cleared) {
            // Not a mount point, because it could not be covered.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Mounts an overlay over `/tmp` whose changes stay in memory. Returns false if the kernel has no overlayfs: then
/// `/tmp` itself stays writable, and so do the other directories to be covered; they are added to `writable`.
fn cover_temporary<'a>(
    directory: &CStr,
    layout: &Layout<'a>,
    writable: &mut Vec<&'a CStr>,
) -> io::Result<bool> {
    let memory = mount(
        Some(c"temporary"),
        directory,
        Some(c"tmpfs"),
        NO_DEVICES,
        Some(&limit_memory("mode=0700", layout.memory_size)?),
    );
    if allow_unavailable(memory)? {
        let root = open_tree(directory)?; // by descriptor: a path may contain characters that options cannot
        if cover(&root, 0, TEMPORARY)? {
            for (number, other) in layout.covered.iter().enumerate() {
                if std::path::Path::new(sys::as_os_path(other.to_bytes())).is_dir()
                    && cover(&root, number + 1, other)?
                {
                    writable.push(other);
                }
            }
            return Ok(true);
        }
    }
    let tree = open_tree(TEMPORARY)?;
    move_mount(&tree, TEMPORARY)?;
    Ok(false)
}

/// Mounts an overlay over a directory; its changes are kept below `root`, under a number.
fn cover(root: &OwnedFd, number: usize, path: &CStr) -> io::Result<bool> {
    let inside = |name: &str| format!("/proc/self/fd/{}/{name}{number}", root.as_raw_fd());
    for name in ["upper", "work"] {
        std::fs::create_dir(inside(name))?;
    }
    let below = sys::as_os_path(path.to_bytes());
    std::fs::set_permissions(inside("upper"), std::fs::metadata(below)?.permissions())?;
    let mut options = b"lowerdir=".to_vec();
    options.extend(path.to_bytes());
    options
        .extend(format!(",upperdir={},workdir={}", inside("upper"), inside("work")).into_bytes());
    let options = make_cstring(&options)?;
    allow_unavailable(mount(
        Some(c"temporary"),
        path,
        Some(c"overlay"),
        NO_DEVICES,
        Some(&options),
    ))
}

/// Limits process numbers, and thus processes: since kernel 6.14 the highest number belongs to a namespace. In older
/// kernels it applies to the whole machine, so it is not changed.
fn limit_processes(most: u32) {
    let release = rustix::system::uname();
    let mut numbers = release
        .release()
        .to_str()
        .unwrap_or_default()
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) >= (Some(6), Some(14)) {
        let _ = std::fs::write("/proc/sys/kernel/pid_max", most.to_string());
    }
}

fn allow_unavailable(done: io::Result<()>) -> io::Result<bool> {
    match done {
        Err(error) if sys::is_unavailable(&error) || error.raw_os_error() == Some(libc::ENODEV) => {
            Ok(false)
        }
        other => other.map(|()| true),
    }
}

/// Whether the kernel has `mount_setattr`. This is checked before anything is changed, because kernels before 5.12
/// would fail halfway.
fn has_mount_setattr() -> bool {
    // SAFETY: a null pointer of size 0 is refused before it is dereferenced.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            0,
            std::ptr::null::<Attributes>(),
            0,
        )
    };
    asked >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: strings end with null, and may be null pointers for these kinds of mounts.
    check(unsafe {
        libc::mount(
            pointer(source),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(options).cast(),
        )
    })
    .map(drop)
}

/// Returns a detached copy of the mount that holds `path`, with `path` as its root.
pub fn open_tree(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the string ends with null.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            path.as_ptr(),
            OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint,
        )
    };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: the kernel has just made it and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn move_mount(tree: &OwnedFd, target: &CStr) -> io::Result<()> {
    // SAFETY: strings end with null.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    check(done as libc::c_int).map(drop)
}

fn set_attributes(path: &CStr, flags: libc::c_uint, attributes: &Attributes) -> io::Result<()> {
    // SAFETY: the string ends with null, and the size is that of the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
        )
    };
    check(done as libc::c_int).map(drop)
}
