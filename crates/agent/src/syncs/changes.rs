//! Determines what calls do to the files on a disk.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::files::{key, Key};
use super::queues::{Memory, RenameArguments};

/// `ioctl(2)` requests that replace a file's data with that of another file (linux/fs.h).
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;

/// Flags of `pwritev2(2)`, and of requests to write: write at the end of the file; write at the given position even if
/// the file was opened for appending.
pub const RWF_APPEND: u64 = 0x10;
const RWF_NOAPPEND: u64 = 0x20;

/// What a call does to a file: it writes a range of bytes, or truncates the file to the start of the range.
#[derive(Clone, PartialEq)]
pub struct Change {
    pub key: Key,
    pub bytes: Range<u64>,
    pub shorter: bool,
}

/// Whether a call sets a file's length and drops the data beyond it.
pub fn truncates(number: libc::c_long) -> bool {
    matches!(number, libc::SYS_truncate | libc::SYS_ftruncate)
}

/// Reads the flags of an open file, and its position.
pub fn read_open_flags(pid: libc::pid_t, descriptor: i32) -> Option<(i32, u64)> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    let field = |name: &str| {
        let mut lines = info.lines();
        lines
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    Some((flags, field("pos:")?.parse().ok()?))
}

/// Returns the descriptor to which a call writes data, from memory or from another file.
pub fn find_written_descriptor(number: libc::c_long, arguments: &[u64; 6]) -> Option<i32> {
    let descriptor = match number {
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_sendfile => arguments[0],
        libc::SYS_copy_file_range | libc::SYS_splice => arguments[2],
        _ => return None,
    };
    Some(descriptor as i32)
}

/// Returns the change that a call is about to make to a file on the disk.
pub fn find_change(
    pid: libc::pid_t,
    number: libc::c_long,
    arguments: &[u64; 6],
    disk: &Path,
) -> Option<Change> {
    let whole = 0..u64::MAX;
    let descriptor = match number {
        libc::SYS_ftruncate => arguments[0],
        // A call that only reserves space changes no data.
        libc::SYS_fallocate if arguments[1] & !(libc::FALLOC_FL_KEEP_SIZE as u64) != 0 => {
            arguments[0]
        }
        libc::SYS_ioctl if [FICLONE, FICLONERANGE].contains(&(arguments[1] as u32)) => arguments[0],
        libc::SYS_truncate => {
            let path = resolve_file(pid, libc::AT_FDCWD, arguments[0])?;
            return path.starts_with(disk).then_some(Change {
                key: key(&fs::metadata(path).ok()?),
                bytes: arguments[1]..u64::MAX,
                shorter: true,
            });
        }
        _ => find_written_descriptor(number, arguments)? as u64,
    };
    let through = format!("/proc/{pid}/fd/{}", descriptor as i32);
    if !fs::read_link(&through).ok()?.starts_with(disk) {
        return None;
    }
    let about = fs::metadata(&through).ok()?;
    let asked = find_write_flags(number, arguments);
    let written = |at: Option<u64>, length: u64| {
        let (flags, position) = read_open_flags(pid, descriptor as i32)?;
        let opened = flags & libc::O_APPEND != 0 && asked & RWF_NOAPPEND == 0;
        let begin = if opened || asked & RWF_APPEND != 0 {
            about.len()
        } else {
            at.unwrap_or(position)
        };
        Some(begin..begin.saturating_add(length))
    };
    let vector = || Memory::of(pid).ok()?.vector(arguments[1], arguments[2]);
    let bytes = match number {
        libc::SYS_write => written(None, arguments[2])?,
        libc::SYS_writev => written(None, vector()?)?,
        libc::SYS_pwrite64 => written(Some(arguments[3]), arguments[2])?,
        libc::SYS_pwritev => written(Some(arguments[3]), vector()?)?,
        libc::SYS_pwritev2 => written(
            (arguments[3] != u64::MAX).then_some(arguments[3]),
            vector()?,
        )?,
        libc::SYS_sendfile => written(None, arguments[3])?,
        libc::SYS_copy_file_range | libc::SYS_splice => {
            let told = match arguments[3] {
                0 => None,
                at => Some(Memory::of(pid).ok()?.bytes(at).map(u64::from_ne_bytes)?),
            };
            written(told, arguments[4])?
        }
        libc::SYS_ftruncate => arguments[1]..u64::MAX,
        _ => whole,
    };
    Some(Change {
        key: key(&about),
        bytes,
        shorter: matches!(number, libc::SYS_ftruncate | libc::SYS_fallocate),
    })
}

/// Whether a call opens and truncates a file.
pub fn truncates_on_open(pid: libc::pid_t, number: libc::c_long, arguments: &[u64; 6]) -> bool {
    let flags = match number {
        libc::SYS_openat => Some(arguments[2]),
        libc::SYS_openat2 => Memory::of(pid)
            .ok()
            .and_then(|memory| memory.bytes(arguments[2]).map(u64::from_ne_bytes)),
        _ => None,
    };
    flags.is_some_and(|flags| flags & libc::O_TRUNC as u64 != 0)
}

/// The old and the new path of each rename; an exchange of two names is two renames.
pub type Renames = Vec<(PathBuf, PathBuf)>;

impl RenameArguments {
    /// Returns what is renamed on the disk.
    pub fn resolve(&self, pid: libc::pid_t, disk: &Path) -> Option<Renames> {
        let resolved = |(directory, name)| resolve_name(pid, directory, name, disk);
        let (old, new) = (resolved(self.old)?, resolved(self.new)?);
        let back = (new.clone(), old.clone());
        let is_exchange = self.flags & u64::from(libc::RENAME_EXCHANGE) != 0;
        Some(
            [(old, new)]
                .into_iter()
                .chain(is_exchange.then_some(back))
                .collect(),
        )
    }
}

/// Returns what a call renames on the disk.
pub fn find_renames(
    pid: libc::pid_t,
    number: libc::c_long,
    arguments: &[u64; 6],
    disk: &Path,
) -> Option<Renames> {
    if number != libc::SYS_renameat2 {
        return None;
    }
    let given = RenameArguments {
        old: (arguments[0] as i32, arguments[1]),
        new: (arguments[2] as i32, arguments[3]),
        flags: arguments[4],
    };
    given.resolve(pid, disk)
}

/// Returns the flags that a call passes for this one write (`RWF_`, `pwritev2(2)`); 0 if it passes none.
pub fn find_write_flags(number: libc::c_long, arguments: &[u64; 6]) -> u64 {
    match number {
        libc::SYS_pwritev2 => arguments[5],
        _ => 0,
    }
}

/// Returns the path of an existing file that a path argument leads to, links included.
pub fn resolve_file(pid: libc::pid_t, directory: i32, name: u64) -> Option<PathBuf> {
    fs::canonicalize(read_path_argument(pid, directory, name)?).ok()
}

/// Returns the path on the disk that a path argument names. Its directory has to exist, but the file need not, and a
/// link is not followed.
pub fn resolve_name(pid: libc::pid_t, directory: i32, name: u64, disk: &Path) -> Option<PathBuf> {
    let path = read_path_argument(pid, directory, name)?;
    let folder = fs::canonicalize(path.parent()?).ok()?;
    let path = folder.join(path.file_name()?);
    path.starts_with(disk).then_some(path)
}

/// Reads a path argument, which begins at an open directory or at the caller's working directory.
fn read_path_argument(pid: libc::pid_t, directory: i32, name: u64) -> Option<PathBuf> {
    let memory = Memory::of(pid).ok()?;
    let name: Vec<u8> = (0..libc::PATH_MAX as u64)
        .map_while(|at| memory.bytes::<1>(name + at).filter(|byte| byte[0] != 0))
        .flatten()
        .collect();
    let base = if directory == libc::AT_FDCWD {
        fs::read_link(format!("/proc/{pid}/cwd"))
    } else {
        fs::read_link(format!("/proc/{pid}/fd/{directory}"))
    };
    Some(base.ok()?.join(OsString::from_vec(name)))
}
