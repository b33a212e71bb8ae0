//! Reads the current state of files: digests of their blocks, their names and their paths.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, FileType};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use xxhash_rust::xxh3::xxh3_64;

/// Size of a digested block in bytes.
pub const BLOCK: usize = 4096;

/// Digests of a file's blocks by block number; blocks of zeroes are left out.
pub type Blocks = BTreeMap<u64, u64>;
/// Device and inode.
pub type Key = (u64, u64);

/// The content of a file; `read` is the number of bytes that were read for it.
#[derive(PartialEq)]
pub struct Content {
    pub size: u64,
    pub blocks: Blocks,
    pub read: u64,
}

impl Content {
    pub fn of(file: &File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let mut blocks = Blocks::new();
        let mut buffer = vec![0; 64 * BLOCK];
        let (mut at, mut read) = (0, 0);
        while at < size {
            at = match seek_data(file, at) {
                Some(data) => data / BLOCK as u64 * BLOCK as u64,
                None => break,
            };
            let length = file.read_at(&mut buffer, at)?;
            if length == 0 {
                break;
            }
            for (index, block) in buffer[..length].chunks(BLOCK).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    blocks.insert(at / BLOCK as u64 + index as u64, digest_block(block));
                }
            }
            read += length as u64;
            at += length as u64;
        }
        Ok(Self { size, blocks, read })
    }
}

/// `guestmark-agent digests`: reads paths in hexadecimal from standard input, and prints one line for each: `SIZE
/// BLOCK:DIGEST…` for a file (as in the tracer's `file` lines), `= NAME,…` for a directory, or `-` if it does not
/// exist.
pub fn print_digests(_arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let mut lines = String::new();
    for line in io::stdin().lines() {
        let bytes = parse_hex(&line?).ok_or(io::ErrorKind::InvalidInput)?;
        let path = Path::new(crate::sys::as_os_path(&bytes));
        lines += &describe_state(path).unwrap_or_else(|_| "-".to_owned());
        lines.push('\n');
    }
    io::stdout().lock().write_all(lines.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn describe_state(path: &Path) -> io::Result<String> {
    if fs::symlink_metadata(path)?.is_dir() {
        return Ok(format!("= {}", format_hex_list(&names(path)?)));
    }
    let content = Content::of(&File::open(path)?)?;
    let size = content.size.to_string();
    Ok(content
        .blocks
        .iter()
        .fold(size, |mut line, (number, digest)| {
            let _ = write!(line, " {number}:{digest:x}");
            line
        }))
}

pub fn key(about: &fs::Metadata) -> Key {
    (about.dev(), about.ino())
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

/// Computes the digest of a block; a file's last block is padded with zeroes, as in a page of memory.
fn digest_block(block: &[u8]) -> u64 {
    let end = block
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    xxh3_64(&block[..end]).max(1)
}

pub fn list_files_below(directory: &Path) -> Vec<PathBuf> {
    list_below(directory, FileType::is_file)
}

/// Lists the symbolic links below a directory.
pub fn list_links_below(directory: &Path) -> Vec<PathBuf> {
    list_below(directory, FileType::is_symlink)
}

fn list_below(directory: &Path, wanted: fn(&FileType) -> bool) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(kind) if wanted(&kind) => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Returns the names in a directory, sorted.
pub fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names: Vec<OsString> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    Ok(names)
}

pub fn format_hex_list(names: &[OsString]) -> String {
    let names: Vec<String> = names
        .iter()
        .map(|name| encode_hex(name.as_bytes()))
        .collect();
    names.join(",")
}

pub fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the current path of an open file on the disk; empty if it has none any more. A file whose name was removed
/// may still have other names.
pub fn read_path_now(file: &File, disk: &Path) -> Vec<u8> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    let bytes = path.as_os_str().as_bytes();
    let Ok(about) = file.metadata() else {
        return bytes.to_vec();
    };
    let same = |path: &Path| fs::symlink_metadata(path).is_ok_and(|it| key(&it) == key(&about));
    if !bytes.ends_with(b" (deleted)") || same(&path) {
        return bytes.to_vec();
    }
    if about.nlink() == 0 {
        return Vec::new();
    }
    let other = list_files_below(disk).into_iter().find(|path| same(path));
    other.map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec())
}

/// Returns where the next data at or after an offset begins; `None` if only a hole follows.
pub fn seek_data(file: &File, at: u64) -> Option<u64> {
    // SAFETY: a descriptor that is open, and numbers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
    if found >= 0 {
        return Some(found as u64);
    }
    // Filesystems that do not know holes report everything as data.
    (io::Error::last_os_error().raw_os_error() != Some(libc::ENXIO)).then_some(at)
}
