//! Writes a log in the format of Linux's `dm-log-writes` (Documentation/admin-guide/device-mapper/log-writes.rst).
//!
//! For entries without data, where the format leaves the length zero, we use the field: a flush stores the number of
//! entries that it covers, plus one (later entries were written during it), and a mark stores its number. As an
//! extension, the last word of the superblock is the error number of the first refused request, or zero.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Unit of offsets and lengths, in bytes.
pub const SECTOR: usize = 512;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

pub struct Log {
    file: File,
    end: u64,
    entries: u64,
    refused: i32,
}

impl Log {
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        let log = Self {
            file,
            end: SECTOR as u64,
            entries: 0,
            refused: 0,
        };
        log.write_superblock()?;
        Ok(log)
    }

    /// Number of entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.append(offset, data.len() as u64, 0, data.len() as u64, data)
    }

    pub fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.append(offset, length, DISCARD, 0, &[])
    }

    /// Records that a request failed, because the log or the image had no space, or because of an I/O error below them.
    /// Unsupported requests are not recorded.
    pub fn record_failure(&mut self, error: i32) {
        let failed = [libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EIO].contains(&error);
        if failed && self.refused == 0 {
            self.refused = error;
            // The block exists already, so this needs no space. If it fails, there is no other way to report it.
            let _ = self.write_superblock();
        }
    }

    /// Logs a completed flush that covers the first `covers` entries.
    pub fn flush(&mut self, covers: u64) -> io::Result<()> {
        self.append(0, 0, FLUSH, covers + 1, &[])?;
        self.write_superblock()
    }

    pub fn mark(&mut self, number: u64) -> io::Result<()> {
        self.append(0, 0, MARK, number, &[])
    }

    fn append(
        &mut self,
        offset: u64,
        length: u64,
        flags: u64,
        more: u64,
        data: &[u8],
    ) -> io::Result<()> {
        let sector = SECTOR as u64;
        let mut entry = [offset / sector, length / sector, flags, more]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>();
        entry.resize(SECTOR, 0);
        entry.extend_from_slice(data);
        self.file.write_all_at(&entry, self.end)?;
        self.end += entry.len() as u64;
        self.entries += 1;
        Ok(())
    }

    fn write_superblock(&self) -> io::Result<()> {
        let refused = self.refused as u64;
        let mut block = [MAGIC, 1, self.entries, SECTOR as u64, refused]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>();
        block.resize(SECTOR, 0);
        self.file.write_all_at(&block, 0)
    }
}
