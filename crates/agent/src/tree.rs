//! Implements the call `Tree`: computes a digest of everything that a program can see of the files below a directory.
//!
//! The digest covers names, types, modes, owners, sizes, contents, links and extended attributes, but neither times nor
//! positions on the disk: two states of a disk with equal digests look the same to a program that does not query those.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::syncs::seek_data;
use crate::sys;

const BLOCK: usize = 4096;
const READ: usize = 64 * BLOCK;

pub fn digest(directory: &Path) -> io::Result<u128> {
    let mut seen = TreeDigest {
        digest: Xxh3::new(),
        linked: HashMap::new(),
        buffer: vec![0; READ],
    };
    seen.digest_below(directory)?;
    Ok(seen.digest.digest128())
}

struct TreeDigest {
    digest: Xxh3,
    /// Files with several names, by device and inode: the number of the first name.
    linked: HashMap<(u64, u64), u64>,
    buffer: Vec<u8>,
}

impl TreeDigest {
    fn digest_below(&mut self, directory: &Path) -> io::Result<()> {
        let mut names = fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        self.digest_number(names.len() as u64);
        for name in names {
            self.digest_bytes(name.as_bytes());
            self.digest_entry(&directory.join(name))?;
        }
        Ok(())
    }

    fn digest_entry(&mut self, path: &Path) -> io::Result<()> {
        let about = fs::symlink_metadata(path)?;
        self.digest_number(about.mode().into());
        self.digest_number(about.uid().into());
        self.digest_number(about.gid().into());
        self.digest_attributes(path)?;
        let kind = about.file_type();
        if kind.is_dir() {
            return self.digest_below(path);
        }
        if about.nlink() > 1 && !self.is_first(&about) {
            return Ok(());
        }
        if kind.is_symlink() {
            self.digest_bytes(fs::read_link(path)?.as_os_str().as_bytes());
        } else if kind.is_file() {
            self.digest_content(&File::open(path)?, about.len());
        } else if kind.is_block_device() || kind.is_char_device() {
            self.digest_number(about.rdev());
        }
        Ok(())
    }

    /// Whether a file with several names is encountered for the first time.
    fn is_first(&mut self, about: &Metadata) -> bool {
        let next = self.linked.len() as u64;
        let number = *self
            .linked
            .entry((about.dev(), about.ino()))
            .or_insert(next);
        self.digest_number(about.nlink());
        self.digest_number(number);
        number == next
    }

    fn digest_attributes(&mut self, path: &Path) -> io::Result<()> {
        let mut names = vec![0; 64 << 10];
        let length = match rustix::fs::llistxattr(path, &mut names[..]) {
            Ok(length) => length,
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut names: Vec<&[u8]> = names[..length]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .collect();
        names.sort_unstable();
        self.digest_number(names.len() as u64);
        let mut value = vec![0; if names.is_empty() { 0 } else { 64 << 10 }];
        for name in names {
            self.digest_bytes(name);
            let length = rustix::fs::lgetxattr(path, sys::as_os_path(name), &mut value[..])?;
            self.digest_bytes(&value[..length]);
        }
        Ok(())
    }

    /// Digests all blocks that contain data, each with its position; holes and blocks of zeroes are equivalent.
    ///
    /// A block that cannot be read, for instance because its checksum is wrong, contributes its position and its error.
    fn digest_content(&mut self, file: &File, size: u64) {
        self.digest_number(size);
        let mut at = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(data) = (at < size).then(|| seek_data(file, at)).flatten() {
            at = data / BLOCK as u64 * BLOCK as u64;
            let length = match file.read_at(&mut buffer, at) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) => {
                    self.digest_number(at);
                    self.digest_number(error.raw_os_error().unwrap_or(0) as u64);
                    at += READ as u64;
                    continue;
                }
            };
            for (number, block) in buffer[..length].chunks(BLOCK).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    self.digest_number(at / BLOCK as u64 + number as u64);
                    self.digest.update(block);
                }
            }
            at += length as u64;
        }
        self.buffer = buffer;
        self.digest_number(u64::MAX);
    }

    fn digest_number(&mut self, number: u64) {
        self.digest.update(&number.to_le_bytes());
    }

    /// Digests the length before the bytes, so that the boundary between two strings is unambiguous.
    fn digest_bytes(&mut self, bytes: &[u8]) {
        self.digest_number(bytes.len() as u64);
        self.digest.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::digest;
    use std::fs::{self, File};
    use std::os::unix::fs::{symlink, FileExt, PermissionsExt};
    use std::path::Path;

    type Change = fn(&Path) -> std::io::Result<()>;

    fn furnished(name: &str) -> std::path::PathBuf {
        let directory = std::env::temp_dir().join(format!("tree-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("a")).unwrap();
        fs::write(directory.join("a/file"), b"content").unwrap();
        fs::write(directory.join("zeroes"), [0; 9000]).unwrap();
        symlink("a/file", directory.join("link")).unwrap();
        directory
    }

    #[test]
    fn each_thing_that_a_program_sees_makes_a_difference() {
        let changes: [(&str, Change); 8] = [
            ("content", |at| fs::write(at.join("a/file"), b"Content")),
            ("size", |at| {
                File::options()
                    .write(true)
                    .open(at.join("zeroes"))?
                    .set_len(9001)
            }),
            ("name", |at| {
                fs::rename(at.join("zeroes"), at.join("zeroes.old"))
            }),
            ("mode", |at| {
                fs::set_permissions(at.join("a"), fs::Permissions::from_mode(0o700))
            }),
            ("symlink", |at| {
                fs::remove_file(at.join("link"))?;
                symlink("a", at.join("link"))
            }),
            ("hard link", |at| {
                fs::hard_link(at.join("a/file"), at.join("second"))
            }),
            ("new", |at| fs::create_dir(at.join("empty"))),
            ("late byte", |at| {
                File::options()
                    .write(true)
                    .open(at.join("zeroes"))?
                    .write_all_at(b"x", 8999)
            }),
        ];
        let plain = digest(&furnished("plain")).unwrap();
        for (name, change) in changes {
            let directory = furnished(name);
            assert_eq!(digest(&directory).unwrap(), plain, "{name}");
            change(&directory).unwrap();
            assert_ne!(digest(&directory).unwrap(), plain, "{name}");
            fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn a_hole_is_the_same_as_zeroes() {
        let (one, other) = (furnished("one"), furnished("other"));
        let holes = File::create(other.join("zeroes")).unwrap();
        holes.set_len(9000).unwrap();
        assert_eq!(digest(&one).unwrap(), digest(&other).unwrap());
        fs::remove_dir_all(one).unwrap();
        fs::remove_dir_all(other).unwrap();
    }
}
