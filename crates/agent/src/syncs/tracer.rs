//! Holds the state of a tracer: the program's tasks, the calls that they have begun, and which data these promise to be
//! durable when they return.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::changes::{read_open_flags, Change};
use super::disk::Disk;
use super::files::{names, Content, Key};
use super::queues::Queue;

pub(super) const WRITE: &str = "write";
pub(super) const FSYNC: &str = "fsync";

/// The flags of open(2), all of which must be set, and of `pwritev2(2)`, of which one must be set, for a write that
/// returns when it is durable.
#[derive(Clone, Copy)]
pub(super) struct SyncFlags {
    opened: i32,
    asked: u64,
}

/// Durable like fdatasync, or like fsync, which covers the file's name, too.
pub(super) const WITH_DATA: SyncFlags = SyncFlags {
    opened: libc::O_DSYNC,
    asked: 0x2 | 0x4,
};
pub(super) const WITH_NAME: SyncFlags = SyncFlags {
    opened: libc::O_SYNC,
    asked: 0x4,
};

impl SyncFlags {
    pub(super) fn are_in(self, opened: i32, asked: u64) -> bool {
        opened & self.opened == self.opened || asked & self.asked != 0
    }
}

pub(super) struct Job {
    pub(super) disk: PathBuf,
    pub(super) most: u64,
    pub(super) bytes: u64,
    pub(super) argv: Vec<OsString>,
}

/// The data that a call promises to be durable when it returns.
pub(super) enum Promise {
    /// A range of a file (for a write, the return value gives its length), and the file's content when the call began,
    /// if another thread may write at the same time.
    File(File, Range<u64>, Option<Content>),
    /// A directory, and the names in it when the call began, if another thread may change them at the same time.
    Directory(PathBuf, Option<Vec<OsString>>),
    /// Everything on the disk, and likewise its state when the call began.
    Everything(Option<HashMap<Key, Content>>),
}

pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) promise: Promise,
    /// Whether it also promises the name of an older file, which fdatasync does not.
    pub(super) promises_name: bool,
    /// The change that the call itself makes.
    pub(super) change: Option<Change>,
    /// Changes that other tasks make to files during the call: each may be on the disk, or half of it, or may have been
    /// undone by the end of the call.
    pub(super) disturbed: Vec<Change>,
}

impl Call {
    /// Creates a call that changes nothing itself, or whose changes are known separately.
    pub(super) fn of(name: &'static str, promise: Promise) -> Self {
        Self {
            name,
            promise,
            promises_name: name == FSYNC,
            change: None,
            disturbed: Vec::new(),
        }
    }
}

/// A call that a task has begun and that has not returned.
pub(super) enum CallInProgress {
    Promising(Call),
    /// An `io_uring` is being set up; the address of its parameters.
    Uring(u64),
    /// `io_setup(2)` is creating a context; where its address will be stored.
    Context(u64),
    /// Requests of rings are being submitted.
    Entered,
    /// Requests are being submitted to the context at this address.
    Submitted(u64),
    /// A file is being changed.
    Changing(Change),
    /// A file is being opened and truncated.
    Emptying,
}

/// An open file of the program on the disk.
pub(super) struct Target {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) directory: bool,
    /// Flags of open(2).
    pub(super) flags: i32,
}

/// A request in progress.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) call: Option<Call>,
    /// What other requests will have written to the file before this one begins.
    pub(super) written: Vec<Change>,
    /// The change that this request makes.
    pub(super) writes: Option<Change>,
    /// Whether another request was in progress at the same time.
    pub(super) beside: bool,
}

impl Pending {
    /// Notes a change that is not one of those that this request waits for.
    pub(super) fn disturb(&mut self, change: &Change) {
        if let Some(call) = &mut self.call {
            if !self.written.contains(change) {
                call.disturbed.push(change.clone());
            }
        }
    }
}

/// A queue, and the files to which its requests refer by number.
pub(super) struct FollowedQueue {
    pub(super) queue: Queue<Pending>,
    pub(super) files: Vec<Option<Rc<Target>>>,
}

pub(super) struct Tracer {
    pub(super) job: Job,
    pub(super) disk: Disk,
    pub(super) tasks: HashMap<libc::pid_t, Option<CallInProgress>>,
    /// Tasks that wait for a child and therefore write nothing.
    pub(super) waiting: BTreeSet<libc::pid_t>,
    pub(super) queues: Vec<FollowedQueue>,
    /// Whether the kernel may write for the program in the background at any time.
    pub(super) asynchronous: bool,
    pub(super) promises: u64,
    /// The program's standard error.
    pub(super) errors: File,
}

impl Tracer {
    pub(super) fn of(job: Job) -> io::Result<Self> {
        let errors = rustix::fs::memfd_create("errors", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Self {
            errors: errors.into(),
            disk: Disk::of(job.disk.clone()),
            job,
            tasks: HashMap::new(),
            waiting: BTreeSet::new(),
            queues: Vec::new(),
            asynchronous: false,
            promises: 0,
        })
    }

    /// Whether only the stopped task can write.
    pub(super) fn writes_alone(&self) -> bool {
        let queues = &self.queues;
        self.tasks.len() == self.waiting.len() + 1
            && !self.asynchronous
            && !queues.iter().any(|one| one.queue.busy())
    }

    /// Returns the path of an open file on the disk.
    pub(super) fn path_of(&self, pid: libc::pid_t, descriptor: i32) -> Option<PathBuf> {
        let path = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
        path.starts_with(&self.job.disk).then_some(path)
    }

    /// Returns an open file or directory on the disk.
    pub(super) fn find_target(&mut self, pid: libc::pid_t, descriptor: i32) -> Option<Target> {
        let path = self.path_of(pid, descriptor)?;
        let through = format!("/proc/{pid}/fd/{descriptor}");
        let kind = fs::metadata(&through).ok()?;
        if !kind.is_dir() && !kind.is_file() {
            return None;
        }
        let (flags, _) = read_open_flags(pid, descriptor)?;
        Some(Target {
            file: self.open_promised(Path::new(&through))?,
            path,
            directory: kind.is_dir(),
            flags,
        })
    }

    pub(super) fn open_promised(&mut self, path: &Path) -> Option<File> {
        let file = File::open(path);
        if file.is_err() {
            self.disk
                .elsewhere
                .insert("it syncs a file that cannot be read");
        }
        file.ok()
    }

    pub(super) fn make_file_promise(&mut self, file: File, bytes: Range<u64>) -> Option<Promise> {
        let before = if self.writes_alone() {
            None
        } else {
            Some(self.disk.read(&file).ok()?)
        };
        Some(Promise::File(file, bytes, before))
    }

    pub(super) fn make_directory_promise(&self, path: PathBuf) -> Promise {
        let began = if self.writes_alone() {
            None
        } else {
            names(&path).ok()
        };
        Promise::Directory(path, began)
    }

    /// Notes a change for earlier promises and for promises in progress.
    pub(super) fn note_change(&mut self, change: &Change) {
        self.disk.touch(change);
        for begun in self.tasks.values_mut().flatten() {
            if let CallInProgress::Promising(call) = begun {
                call.disturbed.push(change.clone());
            }
        }
        let queued = self.queues.iter_mut();
        for pending in queued.flat_map(|one| one.queue.iterate_stored()) {
            pending.disturb(change);
        }
    }

    /// Returns the changes to files that are being made by all tasks but one, and by the kernel for any task.
    pub(super) fn list_changes_under_way(&mut self, but: libc::pid_t) -> Vec<Change> {
        let others = self.tasks.iter().filter(|(pid, _)| **pid != but);
        let mut found: Vec<Change> = others
            .filter_map(|(_, begun)| match begun.as_ref()? {
                CallInProgress::Changing(change) => Some(change.clone()),
                CallInProgress::Promising(call) => call.change.clone(),
                _ => None,
            })
            .collect();
        let queued = self
            .queues
            .iter_mut()
            .flat_map(|one| one.queue.iterate_stored());
        found.extend(queued.filter_map(|one| one.writes.clone()));
        found
    }

    /// Prints what has been promised, and waits. If `exact`, nothing else was being written meanwhile.
    pub(super) fn report_promise(
        &mut self,
        mut call: Call,
        result: u64,
        exact: bool,
    ) -> io::Result<()> {
        if let Some(change) = &call.change {
            self.note_change(change);
        }
        for change in self.list_changes_under_way(0) {
            self.disk.touch(&change);
            call.disturbed.push(change);
        }
        self.disk.report_changes();
        match call.promise {
            Promise::File(file, bytes, before) => {
                let end = if call.name == WRITE {
                    bytes.start.saturating_add(result)
                } else {
                    bytes.end
                };
                let written = bytes.start..end;
                let before = match before {
                    Some(old) if call.name == WRITE => {
                        Some(self.disk.as_written(&file, old, &written)?)
                    }
                    other => other,
                };
                let known = before.as_ref().map(|old| (old, &call.disturbed[..]));
                self.disk
                    .report_state(file, written, known, call.promises_name)?;
            }
            Promise::Directory(path, began) => self.disk.promise_names(&path, began.as_deref()),
            Promise::Everything(before) => {
                let root = self.job.disk.clone();
                let known = before.as_ref().map(|old| (old, &call.disturbed[..]));
                self.disk.promise_tree(&root, known)?;
            }
        }
        self.disk.report_moves();
        let exact = u8::from(exact);
        let _ = writeln!(self.disk.lines, "sync {} {exact}", call.name);
        self.promises += 1;
        self.disk.flush()?;
        io::stdin().lock().read_exact(&mut [0])
    }
}
