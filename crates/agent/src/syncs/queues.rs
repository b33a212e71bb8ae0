//! Reads the queues through which a program has the kernel write and flush in the background: `io_uring(7)` and
//! `io_setup(2)`.
//!
//! The tracer maps the rings of an `io_uring` through a descriptor of its own, and reads those of `io_setup` in the
//! program's memory. It learns of requests when the program submits them to the kernel, and of results at the program's
//! next system call: until then no other process can have learnt of them. A kernel thread that polls for requests is
//! not followed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{fence, Ordering};

/// Flags of `io_uring_setup(2)`: a kernel thread submits requests (`SQPOLL`); the rings are in the program's memory;
/// the ring has no descriptor; and all flags that are known here.
const SQPOLL: u32 = 1 << 1;
const NO_MMAP: u32 = 1 << 14;
const REGISTERED_ONLY: u32 = 1 << 15;
const KNOWN: u32 = (1 << 18) - 1;
const LARGE_ENTRIES: u32 = 1 << 10;
const LARGE_RESULTS: u32 = 1 << 11;
const NO_ARRAY: u32 = 1 << 16;
/// `mmap(2)` offsets of an `io_uring`.
const RESULTS_AT: libc::off_t = 0x800_0000;
const ENTRIES_AT: libc::off_t = 0x1000_0000;
/// Flags and opcodes of an entry.
const FIXED: u8 = 1;
const DRAIN: u8 = 1 << 1;
const LINKS: u8 = 1 << 2 | 1 << 3;
const SILENT: u8 = 1 << 6;
const WRITES: [u8; 4] = [2, 5, 23, SPLICE];
const SPLICE: u8 = 30;
const OPENS: u8 = 18;
const RENAMES: u8 = 35;
const TRUNCATES: u8 = 55;
const WRITEV: u8 = 2;
const FSYNC: u8 = 3;
/// Flag of a result: the same request will have more results.
const MORE: u32 = 1 << 1;
/// Maximum number of requests of one `io_submit(2)` that are examined.
const MOST: u64 = 4096;

/// Bytes of an address or a size.
const SIZE: u64 = size_of::<usize>() as u64;

/// The memory of a program.
pub struct Memory(File);

impl Memory {
    pub fn of(pid: libc::pid_t) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }

    pub fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    fn word(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    fn long(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_ne_bytes)
    }

    /// Reads an address or a size.
    fn size(&self, at: u64) -> Option<u64> {
        self.bytes(at)
            .map(|bytes| usize::from_ne_bytes(bytes) as u64)
    }

    /// Returns the total length of `count` parts, each a `struct iovec`: an address and a size.
    pub fn vector(&self, at: u64, count: u64) -> Option<u64> {
        (0..count.min(1024))
            .map(|index| self.size(at + (2 * index + 1) * SIZE))
            .sum()
    }
}

/// Returns the process id of a thread.
pub fn find_process(pid: libc::pid_t) -> libc::pid_t {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or(pid)
}

/// An open file as a request refers to it: by a descriptor, or by an index into the ring's own table.
#[derive(Clone, Copy)]
pub enum RequestFile {
    Descriptor(i32),
    Fixed(u32),
}

/// The arguments of a rename: the old and the new name, each as a directory and the address of a name in it, and the
/// flags of `renameat2(2)`.
#[derive(PartialEq)]
pub struct RenameArguments {
    pub old: (i32, u64),
    pub new: (i32, u64),
    pub flags: u64,
}

#[derive(PartialEq)]
pub enum RequestKind {
    Flush,
    Write,
    Truncate,
    Rename(RenameArguments),
    /// Opens a file and truncates it. The file is given by a directory and the address of a name.
    Empty(i32, u64),
    Other,
}

/// A request of a program. For a write at the file's current position, `bytes` begin at `u64::MAX`.
pub struct Request {
    pub key: u64,
    pub kind: RequestKind,
    pub file: RequestFile,
    pub bytes: Range<u64>,
    /// `RWF_` flags of a write; for a flush, 1 if it covers only data.
    pub flags: u32,
    /// Whether the next request begins only when this one has completed.
    pub linked: bool,
    /// Whether this request begins only when all earlier ones have completed.
    pub drained: bool,
    /// Whether this request reports no result.
    pub silent: bool,
    position: u64,
}

/// The requests of a queue that are in progress; `T` is what the queue's owner stores with each.
pub struct Queue<T> {
    rings: Rings,
    asked: Vec<(u64, u64, T)>,
    waiting: HashMap<u64, SameKeyRequests<T>>,
}

enum Rings {
    Uring(Uring),
    Context(Context),
}

impl<T> Queue<T> {
    /// Creates the queue of the `io_uring` that a process has just set up. Fails if it cannot be followed.
    pub fn follow_uring(
        process: libc::pid_t,
        descriptor: i32,
        parameters: u64,
    ) -> io::Result<Self> {
        Uring::of(process, descriptor, parameters).map(|ring| Self::with(Rings::Uring(ring)))
    }

    /// Creates the queue that `io_setup(2)` has just set up and whose address is at `pointer`.
    pub fn follow_context(process: libc::pid_t, pointer: u64) -> Option<Self> {
        Context::of(process, pointer).map(|context| Self::with(Rings::Context(context)))
    }

    fn with(rings: Rings) -> Self {
        Self {
            rings,
            asked: Vec::new(),
            waiting: HashMap::new(),
        }
    }

    /// Whether this is the `io_uring` of a descriptor.
    pub fn is_uring(&self, process: libc::pid_t, descriptor: i32) -> bool {
        matches!(&self.rings, Rings::Uring(ring) if ring.name == (process, descriptor))
    }

    pub fn is_context(&self, process: libc::pid_t, address: u64) -> bool {
        matches!(&self.rings, Rings::Context(context) if context.name == (process, address))
    }

    /// Whether any request is in progress.
    pub fn busy(&self) -> bool {
        !self.asked.is_empty() || !self.waiting.is_empty()
    }

    /// Returns what is stored with each request in progress.
    pub fn iterate_stored(&mut self) -> impl Iterator<Item = &mut T> {
        let asked = self.asked.iter_mut().map(|(_, _, one)| one);
        self.waiting
            .values_mut()
            .flat_map(|alike| &mut alike.kept)
            .chain(asked)
    }

    /// Returns the requests in an `io_uring` that the kernel has not consumed yet.
    pub fn list_unconsumed_requests(&mut self, memory: &Memory) -> Vec<Request> {
        let Rings::Uring(ring) = &self.rings else {
            return Vec::new();
        };
        let found = ring.list_unconsumed_requests(memory);
        let taken = found.first().map(|request| request.position as u32);
        self.mark_taken_before(taken.unwrap_or_else(|| ring.taken()));
        self.asked.clear();
        found
    }

    /// Adds a request, with what the owner stores.
    pub fn add(&mut self, request: &Request, kept: T) {
        self.asked.push((request.position, request.key, kept));
    }

    /// Notes that the requests that the kernel has consumed are in progress (`io_uring`).
    pub fn taken(&mut self) {
        if let Rings::Uring(ring) = &self.rings {
            self.mark_taken_before(ring.taken());
        }
    }

    fn mark_taken_before(&mut self, head: u32) {
        self.accept(|position| (head.wrapping_sub((position as u32).wrapping_add(1)) as i32) >= 0);
    }

    /// Notes that `io_submit(2)` accepted this many requests.
    pub fn accepted(&mut self, count: u64) {
        self.accept(|position| position < count);
        self.asked.clear();
    }

    fn accept(&mut self, test: impl Fn(u64) -> bool) {
        for (position, key, kept) in std::mem::take(&mut self.asked) {
            if test(position) {
                self.waiting.entry(key).or_default().kept.push(kept);
            } else {
                self.asked.push((position, key, kept));
            }
        }
    }

    /// Returns the requests completed since the last call, with their results. Requests with the same key are returned
    /// only when all of them have completed. `None` if results have been overwritten before they were read.
    pub fn take_completed(&mut self) -> Option<Vec<(T, i64)>> {
        let results = match &mut self.rings {
            Rings::Uring(ring) => ring.take_results()?,
            Rings::Context(context) => context.take_results().unwrap_or_else(|| {
                self.asked.clear(); // its process has exited, or has destroyed it: nobody can learn of further results
                self.waiting.clear();
                Vec::new()
            }),
        };
        let mut found = Vec::new();
        for (key, result) in results {
            while let Some(at) = self.asked.iter().position(|(_, other, _)| *other == key) {
                let (_, _, kept) = self.asked.remove(at);
                self.waiting.entry(key).or_default().kept.push(kept);
            }
            let Some(alike) = self.waiting.get_mut(&key) else {
                continue;
            };
            alike.done += 1;
            alike.worst = alike.worst.min(result);
            if alike.done >= alike.kept.len() {
                let worst = alike.worst;
                let kept = self.waiting.remove(&key).expect("just found").kept;
                found.extend(kept.into_iter().map(|one| (one, worst)));
            }
        }
        Some(found)
    }
}

/// Returns the requests that are passed to `io_submit(2)`; `None` if they cannot be read.
pub fn read_submitted(memory: &Memory, count: u64, pointers: u64) -> Option<Vec<Request>> {
    (0..count.min(MOST))
        .map(|index| Context::decode_request(memory, memory.size(pointers + index * SIZE)?, index))
        .collect()
}

/// Requests to which the program has given the same key.
struct SameKeyRequests<T> {
    kept: Vec<T>,
    done: usize,
    worst: i64,
}

impl<T> Default for SameKeyRequests<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            done: 0,
            worst: i64::MAX,
        }
    }
}

/// Memory shared with the kernel and the program.
struct Shared {
    at: *const u8,
    size: usize,
}

impl Shared {
    fn of(ring: &OwnedFd, offset: libc::off_t, size: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, of a descriptor that is open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ,
                libc::MAP_SHARED,
                ring.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            at: at as *const u8,
            size,
        })
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        assert!(at + N <= self.size, "an io_uring's rings end before that");
        // SAFETY: within the mapping, which lives as long as this; others may write to it, so it is read once.
        let bytes = unsafe { std::ptr::read_volatile(self.at.add(at).cast::<[u8; N]>()) };
        fence(Ordering::Acquire);
        bytes
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping that `of` made; nothing points into it.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.size) };
    }
}

struct Uring {
    name: (libc::pid_t, i32),
    submitted: Shared,
    results: Shared,
    entries: Shared,
    /// Offsets in the rings: heads, tails, masks, the array of indices, the results.
    of: Offsets,
    flags: u32,
    seen: u32,
}

struct Offsets {
    head: usize,
    tail: usize,
    mask: usize,
    array: usize,
    done: usize,
    done_mask: usize,
    done_count: u32,
    done_at: usize,
}

impl Uring {
    /// Maps the rings of an `io_uring`; see `struct io_uring_params`.
    fn of(process: libc::pid_t, descriptor: i32, parameters: u64) -> io::Result<Self> {
        let bytes: [u8; 120] = Memory::of(process)?
            .bytes(parameters)
            .ok_or(io::ErrorKind::InvalidData)?;
        let word = |index: usize| {
            u32::from_ne_bytes(bytes[index * 4..index * 4 + 4].try_into().expect("four"))
        };
        let flags = word(2);
        if flags & (SQPOLL | NO_MMAP | REGISTERED_ONLY | !KNOWN) != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (entries, results) = (word(0) as usize, word(1) as usize);
        let of = Offsets {
            head: word(10) as usize,
            tail: word(11) as usize,
            mask: word(12) as usize,
            array: word(16) as usize,
            done: word(21) as usize,
            done_mask: word(22) as usize,
            done_count: word(1),
            done_at: word(25) as usize,
        };
        let ring = copy_descriptor(process, descriptor)?;
        let array = if flags & NO_ARRAY == 0 {
            entries * 4
        } else {
            0
        };
        let submitted = Shared::of(
            &ring,
            0,
            (of.array + array).max(of.mask + 4).max(of.tail + 4),
        )?;
        let results = Shared::of(
            &ring,
            RESULTS_AT,
            of.done_at + results * result_size(flags) as usize,
        )?;
        let entries = Shared::of(&ring, ENTRIES_AT, entries * entry_size(flags) as usize)?;
        let seen = results.word(of.done);
        Ok(Self {
            name: (process, descriptor),
            submitted,
            results,
            entries,
            of,
            flags,
            seen,
        })
    }

    /// Returns how many entries the kernel has consumed.
    fn taken(&self) -> u32 {
        self.submitted.word(self.of.head)
    }

    fn list_unconsumed_requests(&self, memory: &Memory) -> Vec<Request> {
        let (mut at, tail) = (self.taken(), self.submitted.word(self.of.tail));
        let mask = self.submitted.word(self.of.mask);
        let mut found = Vec::new();
        while at != tail && found.len() <= mask as usize {
            let mut place = at & mask;
            if self.flags & NO_ARRAY == 0 {
                place = self
                    .submitted
                    .word(self.of.array + place as usize * 4)
                    .min(mask);
            }
            let size = entry_size(self.flags) as usize;
            let entry: [u8; 40] = self.entries.bytes(place as usize * size);
            found.push(Self::decode_request(memory, &entry, u64::from(at)));
            at = at.wrapping_add(1);
        }
        found
    }

    /// Decodes a `struct io_uring_sqe`.
    fn decode_request(memory: &Memory, entry: &[u8; 40], position: u64) -> Request {
        let word =
            |at: usize| u32::from_ne_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        let long =
            |at: usize| u64::from_ne_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        let (code, flags, begin) = (entry[0], entry[1], long(8));
        let mut length = u64::from(word(24));
        let kind = if code == FSYNC {
            if length == 0 {
                length = u64::MAX;
            }
            RequestKind::Flush
        } else if WRITES.contains(&code) {
            if code == WRITEV {
                length = memory.vector(long(16), length).unwrap_or(0);
            }
            RequestKind::Write
        } else if code == TRUNCATES {
            length = u64::MAX;
            RequestKind::Truncate
        } else if code == RENAMES {
            RequestKind::Rename(RenameArguments {
                old: (word(4) as i32, long(16)),
                new: (word(24) as i32, begin),
                flags: word(28).into(),
            })
        } else if code == OPENS && word(28) & libc::O_TRUNC as u32 != 0 {
            RequestKind::Empty(word(4) as i32, long(16))
        } else {
            RequestKind::Other
        };
        Request {
            key: long(32),
            kind,
            file: if flags & FIXED == 0 {
                RequestFile::Descriptor(word(4) as i32)
            } else {
                RequestFile::Fixed(word(4))
            },
            bytes: begin..begin.saturating_add(length),
            // Those of splice(2) are others.
            flags: if code == SPLICE { 0 } else { word(28) },
            linked: flags & LINKS != 0,
            drained: flags & DRAIN != 0,
            silent: flags & SILENT != 0,
            position,
        }
    }

    /// Returns keys and results since the last call; see `struct io_uring_cqe`.
    fn take_results(&mut self) -> Option<Vec<(u64, i64)>> {
        let tail = self.results.word(self.of.done);
        if tail.wrapping_sub(self.seen) > self.of.done_count {
            return None;
        }
        let mask = self.results.word(self.of.done_mask);
        let mut found = Vec::new();
        while self.seen != tail {
            let at = self.of.done_at + ((self.seen & mask) * result_size(self.flags)) as usize;
            let key = u64::from_ne_bytes(self.results.bytes(at));
            let result = self.results.word(at + 8) as i32;
            if self.results.word(at + 12) & MORE == 0 {
                found.push((key, i64::from(result)));
            }
            self.seen = self.seen.wrapping_add(1);
        }
        Some(found)
    }
}

fn entry_size(flags: u32) -> u32 {
    if flags & LARGE_ENTRIES == 0 {
        64
    } else {
        128
    }
}

fn result_size(flags: u32) -> u32 {
    if flags & LARGE_RESULTS == 0 {
        16
    } else {
        32
    }
}

/// Copies a descriptor of another process by `pidfd_getfd(2)`.
fn copy_descriptor(process: libc::pid_t, descriptor: i32) -> io::Result<OwnedFd> {
    let owned = |result: libc::c_long| {
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nothing else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
    };
    // SAFETY: numbers.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })
}

/// A context of `io_setup(2)`: a `struct aio_ring` in the program's memory.
struct Context {
    name: (libc::pid_t, u64),
    memory: Memory,
    count: u32,
    seen: u32,
}

impl Context {
    fn of(process: libc::pid_t, pointer: u64) -> Option<Self> {
        let memory = Memory::of(process).ok()?;
        let address = memory.size(pointer)?;
        let (count, seen, magic) = (
            memory.word(address + 4)?,
            memory.word(address + 12)?,
            memory.word(address + 16)?,
        );
        (magic == 0xa10a_10a1 && count > 0).then_some(Self {
            name: (process, address),
            memory,
            count,
            seen,
        })
    }

    /// Decodes a `struct iocb`.
    fn decode_request(memory: &Memory, at: u64, position: u64) -> Option<Request> {
        let bytes: [u8; 48] = memory.bytes(at)?;
        let long =
            |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let word =
            |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (begin, mut length) = (long(40), long(32));
        let code = u16::from_ne_bytes([bytes[16], bytes[17]]);
        let kind = match code {
            1 => RequestKind::Write,
            8 => {
                length = memory.vector(long(24), length).unwrap_or(0);
                RequestKind::Write
            }
            2 | 3 => RequestKind::Flush,
            _ => RequestKind::Other,
        };
        let whole = kind == RequestKind::Flush;
        Some(Request {
            key: at,
            kind,
            file: RequestFile::Descriptor(word(20) as i32),
            bytes: if whole {
                0..u64::MAX
            } else {
                begin..begin.saturating_add(length)
            },
            flags: match code {
                3 => 1,
                _ => word(if cfg!(target_endian = "big") { 8 } else { 12 }),
            },
            linked: false,
            drained: false,
            silent: false,
            position,
        })
    }

    /// Returns keys and results; see `struct io_event`.
    fn take_results(&mut self) -> Option<Vec<(u64, i64)>> {
        let address = self.name.1;
        let tail = self.memory.word(address + 12)?;
        let first = u64::from(self.memory.word(address + 28)?);
        let mut found = Vec::new();
        while self.seen != tail && self.seen < self.count {
            let at = address + first + u64::from(self.seen) * 32;
            let result = self.memory.long(at + 16)? as i64;
            found.push((self.memory.long(at + 8)?, result));
            self.seen = (self.seen + 1) % self.count;
        }
        Some(found)
    }
}
