//! `guestmark-agent log-writes`: serves an image as a plain file, and logs each write and each flush.
//!
//! The program that opens the file is treated as a hypervisor: a write that reaches this host's kernel is a write of
//! the disk, an `fsync` or `fdatasync` is a flush, and `close` is neither. Requests are served one after the other, so
//! that the order of the log is the order on the disk. A flush takes a while, as on a disk, and covers only what had
//! been written when it was requested. A program that learns of an acknowledgement marks that moment with an `ioctl`:
//! if a mark precedes the end of its flush, the acknowledgement came too early.

mod fuse;
mod log;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, SeekFrom};

use fuse::{Request, FATTR_GID, FATTR_MODE, FATTR_SIZE, FATTR_UID};
use log::{Log, SECTOR};

use crate::sys;

const MAX_WRITE: usize = 1 << 20;
const ZEROES: usize = 1 << 20;

struct Options {
    image: PathBuf,
    log: PathBuf,
    at: PathBuf,
    delay: Duration,
}

/// A pending flush: the request to answer, when to answer it, and how many entries it covers.
struct Flush {
    unique: u64,
    due: Instant,
    covers: u64,
}

struct Server {
    device: OwnedFd,
    image: File,
    log: Log,
    flushes: VecDeque<Flush>,
    delay: Duration,
    mode: u32,
    owner: (u32, u32),
}

/// Serves until the file is unmounted.
pub fn log_writes(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let Some(options) = parse(arguments) else {
        eprintln!(
            "usage: guestmark-agent log-writes --image FILE --log FILE --at FILE [--delay MS]"
        );
        return Ok(ExitCode::from(125));
    };
    let image = File::options()
        .read(true)
        .write(true)
        .open(&options.image)?;
    let log = Log::create(&options.log)?;
    let status = image.metadata()?;
    let device = fuse::mount(&options.at, MAX_WRITE)?;
    let mut server = Server {
        device,
        image,
        log,
        flushes: VecDeque::new(),
        delay: options.delay,
        mode: status.mode() & 0o7777,
        owner: (status.uid(), status.gid()),
    };
    server.serve()?;
    Ok(ExitCode::SUCCESS)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Option<Options> {
    use lexopt::prelude::*;
    let (mut image, mut log, mut at, mut delay) = (None, None, None, 0_u32);
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().ok()? {
        match argument {
            Long("image") => image = Some(parser.value().ok()?.into()),
            Long("log") => log = Some(parser.value().ok()?.into()),
            Long("at") => at = Some(parser.value().ok()?.into()),
            Long("delay") => delay = parser.value().ok()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(Options {
        image: image?,
        log: log?,
        at: at?,
        delay: Duration::from_millis(delay.into()),
    })
}

impl Server {
    fn serve(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; MAX_WRITE + (64 << 10)];
        loop {
            self.end_flushes()?;
            let wait = self
                .flushes
                .front()
                .map(|flush| flush.due.saturating_duration_since(Instant::now()));
            let fd = self.device.as_raw_fd();
            let mut ready = [libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            }];
            sys::poll(&mut ready, wait)?;
            if ready[0].revents == 0 {
                continue;
            }
            let length = match sys::read(fd, &mut buffer) {
                Ok(None) => continue,
                Ok(Some(length)) => length,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENODEV) => return Ok(()),          // unmounted
                    Some(libc::ENOENT | libc::EINTR) => continue, // the request was withdrawn
                    _ => return Err(error),
                },
            };
            let Some(request) = Request::read(&buffer[..length]) else {
                return Err(io::Error::other("the kernel's request is too short"));
            };
            if request.operation == fuse::DESTROY {
                return Ok(());
            }
            let answer = self.answer(&request);
            match answer {
                Ok(Some(data)) => self.reply(request.unique, 0, &data)?,
                Ok(None) => {}
                Err(error) => {
                    let number = error_number(&error);
                    self.log.record_failure(number);
                    self.reply(request.unique, -number, &[])?;
                }
            }
        }
    }

    /// Answers the flushes that are due, in the order of their requests.
    fn end_flushes(&mut self) -> io::Result<()> {
        while self
            .flushes
            .front()
            .is_some_and(|flush| flush.due <= Instant::now())
        {
            if let Some(flush) = self.flushes.pop_front() {
                let logged = self.log.flush(flush.covers);
                let error = logged.err().map_or(0, |error| error_number(&error));
                self.log.record_failure(error);
                self.reply(flush.unique, -error, &[])?;
            }
        }
        Ok(())
    }

    fn reply(&self, unique: u64, error: i32, data: &[u8]) -> io::Result<()> {
        match fuse::reply(&self.device, unique, error, data) {
            // The request was withdrawn in the meantime.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Returns the data of the answer; `None` if nothing is to be sent now.
    fn answer(&mut self, request: &Request) -> io::Result<Option<Vec<u8>>> {
        let body = request.body;
        Ok(Some(match request.operation {
            fuse::INIT => fuse::encode_init(body, MAX_WRITE).ok_or_else(invalid)?,
            fuse::GETATTR => self.attributes()?,
            fuse::SETATTR => {
                let wanted = fuse::Attributes::read(body).ok_or_else(invalid)?;
                if wanted.valid & FATTR_SIZE != 0 {
                    self.image.set_len(wanted.size)?;
                }
                if wanted.valid & FATTR_MODE != 0 {
                    self.mode = wanted.mode & 0o7777;
                }
                if wanted.valid & FATTR_UID != 0 {
                    self.owner.0 = wanted.uid;
                }
                if wanted.valid & FATTR_GID != 0 {
                    self.owner.1 = wanted.gid;
                }
                self.attributes()?
            }
            fuse::OPEN => vec![0; 16],
            fuse::READ => {
                let (offset, size, flags) = fuse::parse_read(body).ok_or_else(invalid)?;
                // As on a disk, unaligned direct reads fail, so that a program which probes the required alignment
                // finds it.
                if flags & libc::O_DIRECT as u32 != 0
                    && (offset % SECTOR as u64 != 0 || size % SECTOR != 0)
                {
                    return Err(invalid());
                }
                let mut data = vec![0; size.min(MAX_WRITE)];
                let length = read_up_to(&self.image, &mut data, offset)?;
                data.truncate(length);
                data
            }
            fuse::WRITE => {
                let (offset, data) = fuse::parse_write(body).ok_or_else(invalid)?;
                self.write(offset, data)?;
                let mut answer = (data.len() as u32).to_ne_bytes().to_vec();
                answer.resize(8, 0);
                answer
            }
            fuse::FSYNC => {
                self.flushes.push_back(Flush {
                    unique: request.unique,
                    due: Instant::now() + self.delay,
                    covers: self.log.entries(),
                });
                return Ok(None);
            }
            fuse::FALLOCATE => {
                let (offset, length, mode) = fuse::parse_fallocate(body).ok_or_else(invalid)?;
                self.allocate(offset, length, mode)?;
                Vec::new()
            }
            fuse::LSEEK => {
                let (offset, whence) = fuse::parse_lseek(body).ok_or_else(invalid)?;
                seek(&self.image, offset, whence)?.to_ne_bytes().to_vec()
            }
            // The kernel does not lock the file for these, so a mark can be logged during a flush.
            fuse::IOCTL => {
                let unknown = || io::Error::from_raw_os_error(libc::ENOTTY);
                self.log.mark(fuse::parse_mark(body).ok_or_else(unknown)?)?;
                vec![0; 16]
            }
            fuse::STATFS => fuse::encode_statfs(&rustix::fs::fstatfs(&self.image)?),
            fuse::FLUSH | fuse::RELEASE => Vec::new(), // `close` makes nothing durable
            fuse::FORGET | fuse::BATCH_FORGET | fuse::INTERRUPT => return Ok(None),
            _ => return Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }))
    }

    fn attributes(&self) -> io::Result<Vec<u8>> {
        let status = self.image.metadata()?;
        Ok(fuse::encode_attributes(&status, self.mode, self.owner))
    }

    /// Writes to the image, and logs the write. The unit of the log is a sector, so the rest of a partly written sector
    /// is logged too.
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let sector = SECTOR as u64;
        let start = offset / sector * sector;
        let end = (offset + data.len() as u64).div_ceil(sector) * sector;
        if (start, end) == (offset, offset + data.len() as u64) {
            self.log.write(start, data)?;
            return self.image.write_all_at(data, offset);
        }
        let mut whole = vec![0; (end - start) as usize];
        read_up_to(&self.image, &mut whole, start)?;
        let skip = (offset - start) as usize;
        whole[skip..skip + data.len()].copy_from_slice(data);
        self.log.write(start, &whole)?;
        self.image.write_all_at(data, offset)
    }

    /// Handles zeroing and discarding in the same way: afterwards the range reads as zeroes.
    fn allocate(&mut self, offset: u64, length: u64, mode: u32) -> io::Result<()> {
        let punch = libc::FALLOC_FL_PUNCH_HOLE as u32;
        let zero = libc::FALLOC_FL_ZERO_RANGE as u32;
        let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
        let size = self.image.metadata()?.len();
        let end = offset.checked_add(length).ok_or_else(invalid)?;
        if mode & !(punch | zero | keep) != 0 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        if mode & (punch | zero) != 0 {
            let within = if mode & keep == 0 { end } else { end.min(size) };
            let (first, last) = (
                offset.next_multiple_of(SECTOR as u64).min(within),
                within / SECTOR as u64 * SECTOR as u64,
            );
            if first >= last {
                return self.write(offset, &vec![0; within.saturating_sub(offset) as usize]);
            }
            self.write(offset, &vec![0; (first - offset) as usize])?;
            self.log.discard(first, last - first)?;
            let zeroes = vec![0; ZEROES];
            let mut position = first;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(&self.image, hole, first, last - first).is_ok() {
                position = last;
            }
            while position < last {
                let part = ((last - position) as usize).min(ZEROES);
                self.image.write_all_at(&zeroes[..part], position)?;
                position += part as u64;
            }
            self.write(last, &vec![0; (within - last) as usize])?;
        }
        if mode & keep == 0 && end > size {
            self.image.set_len(end)?;
        }
        Ok(())
    }
}

fn error_number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn seek(file: &File, offset: u64, whence: i32) -> io::Result<u64> {
    let to = match whence {
        libc::SEEK_DATA => SeekFrom::Data(offset),
        libc::SEEK_HOLE => SeekFrom::Hole(offset),
        _ => return Err(invalid()),
    };
    Ok(rustix::fs::seek(file, to)?)
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}
