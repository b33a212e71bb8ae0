//! Runs the calls that transfer the contents of whole disks. Each has a thread of its own, so that the channel is still
//! watched: when the controller disconnects, the process exits and ends the thread.

mod content;
mod engine;
mod meter;

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::{io, thread};

use guestmark_wire::bulk::{Checksum, Flushed, Transferred};
use guestmark_wire::{Answer, Call, Done, Failed, Failure, Kind};

use crate::failure::{failure, os_failure};
use crate::frame::Outbox;
use crate::sys;

pub use meter::{flush, Meter};

/// The outcome of a call.
enum Outcome {
    Transferred(Transferred),
    Checksum(Checksum),
    Flushed(Flushed),
    Done,
}

/// The calls in progress.
pub struct Bulk {
    sender: Sender<(u64, Result<Outcome, Failure>)>,
    receiver: Receiver<(u64, Result<Outcome, Failure>)>,
    /// Readable when a call has ended.
    bell: OwnedFd,
    /// The other end of that pipe.
    ring: Arc<OwnedFd>,
}

impl Bulk {
    /// Creates an empty list of calls.
    pub fn new() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let (bell, ring) = sys::pipe()?;
        sys::set_nonblocking(bell.as_fd())?;
        Ok(Self {
            sender,
            receiver,
            bell,
            ring: Arc::new(ring),
        })
    }

    /// The descriptor to poll.
    pub fn wakeup_descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Starts a call.
    pub fn start(&self, id: u64, call: Call<'_>, out: &mut Outbox) {
        // Calls that borrow from the request's frame never come here; the others own their data.
        let work: Box<dyn FnOnce() -> Result<Outcome, Failure> + Send> = match call {
            Call::Copy(copy) => Box::new(move || engine::copy(&copy).map(Outcome::Transferred)),
            Call::Fill(fill) => Box::new(move || engine::fill(&fill).map(Outcome::Transferred)),
            Call::ReadBack(read) => {
                Box::new(move || engine::read_back(&read).map(Outcome::Transferred))
            }
            Call::Checksum(extent) => {
                Box::new(move || content::compute_file_checksum(&extent).map(Outcome::Checksum))
            }
            Call::ChecksumOfPattern(extent) => Box::new(move || {
                Ok(Outcome::Checksum(content::compute_pattern_checksum(
                    &extent,
                )))
            }),
            Call::Flush(path) => Box::new(move || flush_path(&path.path).map(Outcome::Flushed)),
            Call::DropCaches => Box::new(|| drop_caches().map(|()| Outcome::Done)),
            _ => Box::new(|| Err(failure(Kind::BadRequest, "not a call that transfers data"))),
        };
        let (sender, ring) = (self.sender.clone(), Arc::clone(&self.ring));
        let started = thread::Builder::new().name("bulk".into()).spawn(move || {
            // The server may have ended in the meantime; then no one needs the answer.
            let _ = sender.send((id, work()));
            let _ = sys::write(ring.as_raw_fd(), &[0]);
        });
        if let Err(error) = started {
            let error = os_failure("thread", &error);
            out.push(&Failed { id, error });
        }
    }

    /// Answers the calls that have ended.
    pub fn answer_ended(&self, out: &mut Outbox) {
        if !matches!(
            sys::read(self.bell.as_raw_fd(), &mut [0; 64]),
            Ok(Some(count)) if count > 0
        ) {
            return;
        }
        while let Ok((id, result)) = self.receiver.try_recv() {
            match result {
                Ok(Outcome::Transferred(ok)) => out.push(&Answer { id, ok }),
                Ok(Outcome::Checksum(ok)) => out.push(&Answer { id, ok }),
                Ok(Outcome::Flushed(ok)) => out.push(&Answer { id, ok }),
                Ok(Outcome::Done) => out.push(&Answer { id, ok: Done {} }),
                Err(error) => out.push(&Failed { id, error }),
            }
        }
    }
}

fn flush_path(path: &[u8]) -> Result<Flushed, Failure> {
    let name = String::from_utf8_lossy(path);
    let file = File::open(sys::as_os_path(path)).map_err(|error| os_failure(&name, &error))?;
    let (begin, between, end) = flush(&file)?;
    Ok(Flushed {
        fsync_ns: between - begin,
        syncfs_ns: end - between,
    })
}

fn drop_caches() -> Result<(), Failure> {
    const CONTROL: &str = "/proc/sys/vm/drop_caches";
    rustix::fs::sync();
    fs::write(CONTROL, "3").map_err(|error| os_failure(CONTROL, &error))
}
