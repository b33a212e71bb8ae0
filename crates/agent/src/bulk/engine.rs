//! Transfers data between files: one block after the other through the page cache, or with `O_DIRECT` and several
//! requests in flight, so that the processor copies nothing.
//!
//! Threads issue the requests. Blocks are megabytes in size, so a gigabyte takes only some hundred requests. A ring
//! shared with the kernel (`io_uring`) would therefore gain nothing, and not every kernel has or allows it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use guestmark_wire::bulk::{Copy, Fill, ReadBack, TransferOptions, Transferred};
use guestmark_wire::{Failure, Kind};

use super::content::Generator;
use super::meter::Meter;
use crate::failure::{failure, os_failure, source_too_short};
use crate::sys;

/// Direct I/O needs offsets, lengths and addresses that are multiples of this; it is the most that any device here
/// requires.
const ALIGNMENT: u64 = 4096;
/// Alignment of buffers: the kernel can back them with huge pages, so that a request has few segments.
const HUGE_PAGE: usize = 2 << 20;
const LARGEST_BLOCK: u64 = 64 << 20;
const MOST_IN_FLIGHT: u32 = 64;

/// The source of the data.
enum Origin {
    File(NamedFile),
    Pattern(Generator),
}

/// A file, and its name for error messages.
struct NamedFile {
    file: File,
    name: String,
}

impl NamedFile {
    fn make_failure(&self, what: &str, error: &io::Error) -> Failure {
        os_failure(&format!("{what} {}", self.name), error)
    }
}

/// Copies a file or device into a file.
pub fn copy(call: &Copy) -> Result<Transferred, Failure> {
    check_block_size(call.how)?;
    let source = open_source(&call.source, call.how.direct)?;
    let size = find_length(&source, call.length)?;
    let from = Origin::File(source);
    write_file(
        &from,
        &call.destination,
        size,
        call.how,
        (call.preallocate, call.flush),
    )
}

/// Fills a file with a pattern.
pub fn fill(call: &Fill) -> Result<Transferred, Failure> {
    check_block_size(call.how)?;
    let from = Origin::Pattern(Generator::new(call.pattern));
    write_file(
        &from,
        &call.path,
        call.size,
        call.how,
        (call.preallocate, call.flush),
    )
}

/// Reads a file or device and discards the data.
pub fn read_back(call: &ReadBack) -> Result<Transferred, Failure> {
    check_block_size(call.how)?;
    let source = open_source(&call.path, call.how.direct)?;
    let size = find_length(&source, call.length)?;
    let mut buffers = make_buffers(call.how, size);
    let meter = Meter::start();
    let blocks = Blocks::new(size, call.how.block_size, false);
    run(&blocks, &mut buffers, |buffer, offset, count| {
        read_full(&source, buffer, offset, count, call.how)
    })?;
    meter.finish(size, call.how.direct, false, None)
}

fn check_block_size(how: TransferOptions) -> Result<(), Failure> {
    let aligned = !how.direct || how.block_size % ALIGNMENT == 0;
    if aligned
        && (1..=LARGEST_BLOCK).contains(&how.block_size)
        && (1..=MOST_IN_FLIGHT).contains(&how.in_flight)
    {
        Ok(())
    } else {
        Err(failure(
            Kind::BadRequest,
            &format!("block size or requests in flight are out of range: {how:?}"),
        ))
    }
}

fn open_source(path: &[u8], direct: bool) -> Result<NamedFile, Failure> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let source = open(&options, path, libc::O_NONBLOCK, direct)?;
    let kind = source
        .file
        .metadata()
        .map_err(|error| source.make_failure("stat", &error))?
        .file_type();
    if kind.is_file() || kind.is_block_device() {
        Ok(source)
    } else {
        let why = format!("{}: neither a file nor a disk", source.name);
        Err(failure(Kind::BadRequest, &why))
    }
}

/// Opens a file, for direct I/O if requested; there is no fallback if the filesystem refuses that.
fn open(
    options: &std::fs::OpenOptions,
    path: &[u8],
    flags: i32,
    direct: bool,
) -> Result<NamedFile, Failure> {
    let name = String::from_utf8_lossy(path).into_owned();
    let mut options = options.clone();
    options.custom_flags(flags | if direct { libc::O_DIRECT } else { 0 });
    match options.open(sys::as_os_path(path)) {
        Ok(file) => Ok(NamedFile { file, name }),
        Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => Err(Failure {
            kind: Kind::NoDirectIo,
            ..os_failure(&format!("{name}: its filesystem refuses O_DIRECT"), &error)
        }),
        Err(error) => Err(os_failure(&name, &error)),
    }
}

/// Returns the number of bytes to transfer: as many as the call requests, or the whole source.
fn find_length(source: &NamedFile, asked: Option<u64>) -> Result<u64, Failure> {
    let size = io::Seek::seek(&mut &source.file, io::SeekFrom::End(0))
        .map_err(|error| source.make_failure("seek", &error))?;
    match asked {
        Some(length) if length > size => Err(source_too_short(&source.name, size, length)),
        Some(length) => Ok(length),
        None => Ok(size),
    }
}

fn write_file(
    from: &Origin,
    destination: &[u8],
    size: u64,
    how: TransferOptions,
    (preallocate, flush): (bool, bool),
) -> Result<Transferred, Failure> {
    let mut buffers = make_buffers(how, size);
    if let Origin::Pattern(generator) = from {
        for buffer in &mut buffers {
            generator.prepare(buffer.bytes());
        }
    }
    let meter = Meter::start();
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    let to = open(&options, destination, 0, how.direct)?;
    let preallocated = preallocate && allocate(&to, size)?;
    // If nothing was allocated, every block must extend the file: within the file's size, ext2 would write to a hole
    // through the page cache, even with `O_DIRECT`.
    let blocks = Blocks::new(size, how.block_size, !preallocated);
    run(&blocks, &mut buffers, |buffer, offset, count| {
        // Direct I/O moves whole sectors; the excess is cut off at the end.
        let whole = round_to_sectors(count, how);
        match from {
            Origin::File(source) => read_full(source, buffer, offset, count, how)?,
            Origin::Pattern(generator) => generator.advance(buffer, offset),
        }
        blocks.run_in_turn(offset, || {
            to.file
                .write_all_at(&buffer[..whole], offset)
                .map_err(|error| to.make_failure("write", &error))
        })
    })?;
    if how.direct && size % ALIGNMENT != 0 {
        to.file
            .set_len(size)
            .map_err(|error| to.make_failure("truncate", &error))?;
    }
    meter.finish(size, how.direct, preallocated, flush.then_some(&to.file))
}

/// Allocates the file; returns false if its filesystem cannot.
fn allocate(to: &NamedFile, size: u64) -> Result<bool, Failure> {
    if size == 0 {
        return Ok(false);
    }
    match rustix::fs::fallocate(&to.file, rustix::fs::FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
        Err(error) => Err(to.make_failure("allocate", &error.into())),
    }
}

/// Rounds `count` up to the length of a request: direct I/O transfers only whole sectors.
fn round_to_sectors(count: usize, how: TransferOptions) -> usize {
    if how.direct {
        count.next_multiple_of(ALIGNMENT as usize)
    } else {
        count
    }
}

/// Reads the first `count` bytes of `buffer`, which has room for the whole sectors that direct I/O asks for.
fn read_full(
    source: &NamedFile,
    buffer: &mut [u8],
    offset: u64,
    count: usize,
    how: TransferOptions,
) -> Result<(), Failure> {
    let mut done = 0;
    while done < count {
        let space = &mut buffer[done..round_to_sectors(count, how)];
        match source.file.read_at(space, offset + done as u64) {
            Ok(0) => {
                let found = offset + done as u64;
                return Err(source_too_short(&source.name, found, offset + count as u64));
            }
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if how.direct && error.raw_os_error() == Some(libc::EINVAL) => {
                return Err(Failure {
                    kind: Kind::NoDirectIo,
                    ..source.make_failure("O_DIRECT is refused: read", &error)
                })
            }
            Err(error) => return Err(source.make_failure("read", &error)),
        }
    }
    Ok(())
}

/// A buffer whose alignment direct I/O accepts.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    size: usize,
}

impl Buffer {
    fn new(size: usize) -> Self {
        // Write to the memory, so that its pages exist before the clock runs.
        let alignment = if size < HUGE_PAGE {
            ALIGNMENT as usize
        } else {
            HUGE_PAGE
        };
        let memory = vec![0xff_u8; size + alignment];
        let start = memory.as_ptr().align_offset(alignment);
        Self {
            memory,
            start,
            size,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.size]
    }
}

fn make_buffers(how: TransferOptions, size: u64) -> Vec<Buffer> {
    let wanted = if how.direct {
        u64::from(how.in_flight)
    } else {
        1
    };
    let useful = size.div_ceil(how.block_size).clamp(1, wanted);
    (0..useful)
        .map(|_| Buffer::new(how.block_size as usize))
        .collect()
}

/// Hands out the blocks, and makes sure that blocks of growing files are written in order.
struct Blocks {
    size: u64,
    block_size: u64,
    next: AtomicU64,
    failed: AtomicBool,
    turn: Option<Mutex<u64>>,
    turned: Condvar,
}

impl Blocks {
    fn new(size: u64, block_size: u64, in_order: bool) -> Self {
        Self {
            size,
            block_size,
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            turn: in_order.then(|| Mutex::new(0)),
            turned: Condvar::new(),
        }
    }

    /// Returns the next block's offset and length.
    fn claim(&self) -> Option<(u64, usize)> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let offset = self.next.fetch_add(1, Ordering::Relaxed) * self.block_size;
        let left = self.size.checked_sub(offset).filter(|&left| left > 0)?;
        Some((offset, left.min(self.block_size) as usize))
    }

    /// Runs `act` after all blocks before this one have been written, or at once if their order does not matter.
    fn run_in_turn(
        &self,
        offset: u64,
        act: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(turn) = &self.turn else {
            return act();
        };
        let mut at = turn.lock().unwrap_or_else(PoisonError::into_inner);
        while *at != offset && !self.failed.load(Ordering::Relaxed) {
            at = self.turned.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
        if *at != offset {
            return Ok(());
        }
        // The lock is held while writing: that keeps the order. Readers do not need it.
        act()?;
        *at += self.block_size;
        self.turned.notify_all();
        Ok(())
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        if let Some(turn) = &self.turn {
            // A thread that is about to wait has checked `failed` under this lock.
            drop(turn.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.turned.notify_all();
    }
}

/// Moves all blocks with one thread per buffer; stops at the first failure.
fn run(
    blocks: &Blocks,
    buffers: &mut [Buffer],
    act: impl Fn(&mut [u8], u64, usize) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let work = |buffer: &mut Buffer| {
        while let Some((offset, count)) = blocks.claim() {
            if let Err(error) = act(buffer.bytes(), offset, count) {
                blocks.fail();
                return Err(error);
            }
        }
        Ok(())
    };
    let [only] = buffers else {
        return thread::scope(|scope| {
            let started: Vec<_> = buffers
                .iter_mut()
                .map(|buffer| scope.spawn(|| work(buffer)))
                .collect();
            let ended = started.into_iter().map(|thread| {
                let died = |_| Err(failure(Kind::Os, "a transfer thread panicked"));
                thread.join().unwrap_or_else(died)
            });
            // Wait for all of them, and report the first failure.
            ended.fold(Ok(()), Result::and)
        });
    };
    work(only)
}
