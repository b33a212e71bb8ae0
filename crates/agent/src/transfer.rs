//! Runs calls that transfer much data, in steps so that other calls are served too; there are no acknowledgements in
//! between.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use guestmark_wire::{Answer, Call, Count, Digest, Failed, Failure, Kind, MAX_CHUNK};
use sha2::{Digest as _, Sha256};

use crate::bulk::Meter;
use crate::failure::{failure, os_failure};
use crate::frame::Outbox;
use crate::sys;

const FIRST_PIECE: usize = 16 << 10;
const HASHED: usize = 256 << 10; // bytes hashed at a time, while other calls wait

/// A running call that transfers data.
pub struct Transfer {
    /// Number of the request.
    pub id: u64,
    bytes: u64,
    started_ns: u64,
    what: TransferKind,
}

enum TransferKind {
    /// To the controller: the remaining limit, and how much to read at a time. That is little at first, because most
    /// files are small and every page of a buffer that a guest touches takes time.
    Read { file: File, left: u64, piece: usize },
    /// From the controller.
    Write { file: File, fsync: bool },
    /// From the controller, with all measurements of a bulk transfer.
    Stream {
        file: File,
        flush: bool,
        meter: Meter,
    },
    /// From the controller; the data are discarded.
    Sink,
    /// Into a digest.
    Hash {
        file: File,
        state: Box<Sha256>,
        buffer: Vec<u8>,
    },
    /// Failed; further data from the controller is ignored.
    Failed,
}

impl Transfer {
    /// Starts a call.
    pub fn start(id: u64, call: Call<'_>) -> Result<Self, Failure> {
        let open = |options: &mut std::fs::OpenOptions, path: &[u8]| {
            let name = String::from_utf8_lossy(path).into_owned();
            options
                .open(OsStr::from_bytes(path))
                .map_err(|error| os_failure(&name, &error))
        };
        // A FIFO without a writer must not block everything.
        let reading = |path: &[u8]| {
            let file = open(
                File::options().read(true).custom_flags(libc::O_NONBLOCK),
                path,
            )?;
            let data = file
                .metadata()
                .map_err(|error| os_failure("stat", &error))?;
            if data.is_dir() || data.file_type().is_fifo() {
                let name = String::from_utf8_lossy(path);
                return Err(failure(
                    Kind::BadRequest,
                    &format!("{name} cannot be read to its end: it is a directory or a FIFO"),
                ));
            }
            Ok(file)
        };
        let what = match call {
            Call::ReadFile(read) => {
                let mut file = reading(&read.path)?;
                if read.offset > 0 {
                    let sought = io::Seek::seek(&mut file, io::SeekFrom::Start(read.offset));
                    sought.map_err(|error| os_failure("seek", &error))?;
                }
                TransferKind::Read {
                    file,
                    left: read.limit,
                    piece: FIRST_PIECE,
                }
            }
            Call::Sha256(path) => TransferKind::Hash {
                file: reading(&path.path)?,
                state: Box::default(),
                buffer: vec![0; HASHED],
            },
            Call::WriteFile(write) => {
                let options = &mut File::options();
                options
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(write.mode);
                let file = open(options, &write.path)?;
                std::os::unix::fs::fchown(&file, write.uid, write.gid)
                    .map_err(|error| os_failure("chown", &error))?;
                TransferKind::Write {
                    file,
                    fsync: write.fsync,
                }
            }
            Call::WriteStream(write) => {
                let options = &mut File::options();
                options.write(true).create(true).truncate(true);
                let meter = Meter::start();
                TransferKind::Stream {
                    file: open(options, &write.path)?,
                    flush: write.flush,
                    meter,
                }
            }
            _ => TransferKind::Sink,
        };
        Ok(Self {
            id,
            bytes: 0,
            started_ns: sys::monotonic_ns(),
            what,
        })
    }

    /// Whether `step` has something to do.
    pub fn has_work(&self) -> bool {
        matches!(
            self.what,
            TransferKind::Read { .. } | TransferKind::Hash { .. }
        )
    }

    /// Runs one step; returns whether the call has ended (its answer is then in `out`).
    pub fn step(&mut self, out: &mut Outbox) -> bool {
        match &mut self.what {
            TransferKind::Read { file, left, piece } => {
                let limit = (*left).min(*piece as u64) as usize;
                let sent = match limit {
                    0 => Ok(0),
                    _ => out.push_chunk(self.id, 1, limit, |space| retry(|| file.read(space))),
                };
                match sent {
                    Ok(0) => self.end(out),
                    Ok(count) => {
                        *left -= count as u64;
                        self.bytes += count as u64;
                        if count == *piece {
                            *piece = (4 * count).min(MAX_CHUNK);
                        }
                        false
                    }
                    Err(error) => self.fail("read", &error, out, true),
                }
            }
            TransferKind::Hash {
                file,
                state,
                buffer,
            } => match retry(|| file.read(buffer)) {
                Ok(0) => {
                    let mut sha256 = String::with_capacity(64);
                    for byte in std::mem::take(&mut **state).finalize() {
                        let _ = write!(sha256, "{byte:02x}");
                    }
                    out.push(&Answer {
                        id: self.id,
                        ok: Digest {
                            sha256,
                            size: self.bytes,
                        },
                    });
                    true
                }
                Ok(count) => {
                    state.update(&buffer[..count]);
                    self.bytes += count as u64;
                    false
                }
                Err(error) => self.fail("read", &error, out, true),
            },
            TransferKind::Write { .. }
            | TransferKind::Stream { .. }
            | TransferKind::Sink
            | TransferKind::Failed => false,
        }
    }

    /// Handles data from the controller; returns whether the call has ended.
    pub fn feed(&mut self, data: &[u8], out: &mut Outbox) -> bool {
        self.bytes += data.len() as u64;
        if let TransferKind::Write { file, .. } | TransferKind::Stream { file, .. } = &mut self.what
        {
            if let Err(error) = file.write_all(data) {
                return self.fail("write", &error, out, false);
            }
        }
        false
    }

    /// Answers the call at the end of the data. Always returns true, because that ends the call.
    pub fn end(&mut self, out: &mut Outbox) -> bool {
        if matches!(self.what, TransferKind::Stream { .. }) {
            let TransferKind::Stream { file, flush, meter } =
                std::mem::replace(&mut self.what, TransferKind::Failed)
            else {
                unreachable!("it was just seen")
            };
            let id = self.id;
            match meter.finish(self.bytes, false, false, flush.then_some(&file)) {
                Ok(ok) => out.push(&Answer { id, ok }),
                Err(error) => out.push(&Failed { id, error }),
            }
            return true;
        }
        match &mut self.what {
            TransferKind::Write { file, fsync: true } => {
                if let Err(error) = file.sync_all() {
                    return self.fail("fsync", &error, out, true);
                }
            }
            TransferKind::Failed => return true,
            _ => {}
        }
        let count = Count {
            bytes: self.bytes,
            started_ns: self.started_ns,
            ended_ns: sys::monotonic_ns(),
        };
        out.push(&Answer {
            id: self.id,
            ok: count,
        });
        true
    }

    fn fail(&mut self, what: &str, error: &io::Error, out: &mut Outbox, ended: bool) -> bool {
        out.push(&Failed {
            id: self.id,
            error: os_failure(what, error),
        });
        self.what = TransferKind::Failed;
        ended
    }
}

fn retry(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
