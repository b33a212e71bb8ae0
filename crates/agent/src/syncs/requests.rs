//! Tracks requests to the kernel that are in progress, and which data they promise to be durable when they complete.

use std::fs;
use std::io;
use std::rc::Rc;

use super::changes::{resolve_file, Change, RWF_APPEND};
use super::files::{key, names, Key};
use super::queues::{
    find_process, read_submitted, Memory, Queue, Request, RequestFile, RequestKind,
};
use super::tracer::{
    Call, FollowedQueue, Pending, Promise, Tracer, FSYNC, WITH_DATA, WITH_NAME, WRITE,
};

/// Maximum number of queues of one program that are followed.
const MOST_QUEUES: usize = 64;
/// Operations of `io_uring_register(2)`: register files to which requests then refer by number, replace some of them,
/// and resize the rings.
const REGISTER_FILES: u64 = 2;
const REPLACE_FILES: u64 = 6;
const OTHER_FILES: [u64; 2] = [13, 14];
const RESIZE: u64 = 33;
/// The reason for files that are registered by other operations.
const OTHER_REGISTRATION: &str =
    "it registers files with an io_uring in a way that cannot be followed";

impl Tracer {
    /// Follows a new queue; `None` stands for one that cannot be followed.
    pub(super) fn follow(&mut self, queue: Option<Queue<Pending>>) {
        match queue {
            Some(queue) if self.queues.len() < MOST_QUEUES => self.queues.push(FollowedQueue {
                queue,
                files: Vec::new(),
            }),
            _ => self.lose_track("it uses asynchronous I/O in a way that cannot be followed"),
        }
    }

    /// Notes that the program may write or flush unobserved from now on.
    fn lose_track(&mut self, why: &'static str) {
        self.asynchronous = true;
        self.disk.elsewhere.insert(why);
    }

    /// Notes that the requests in all rings are about to be submitted.
    pub(super) fn hand_over_rings(&mut self, pid: libc::pid_t) {
        let Ok(memory) = Memory::of(pid) else {
            return self.lose_track("its asynchronous I/O requests cannot be read");
        };
        for index in 0..self.queues.len() {
            let requests = self.queues[index].queue.list_unconsumed_requests(&memory);
            self.add(pid, index, requests);
        }
    }

    /// Notes that requests are about to be submitted by `io_submit(2)`.
    pub(super) fn hand_over_context(&mut self, pid: libc::pid_t, arguments: &[u64; 6]) {
        let process = find_process(pid);
        let mut queues = self.queues.iter();
        let index = queues.position(|one| one.queue.is_context(process, arguments[0]));
        let requests = index.and_then(|_| {
            let memory = Memory::of(pid).ok()?;
            read_submitted(&memory, arguments[1], arguments[2])
        });
        match (index, requests) {
            (Some(index), Some(requests)) => self.add(pid, index, requests),
            _ => self.lose_track("its asynchronous I/O requests cannot be read"),
        }
    }

    /// Stores which data requests promise, and the current state of their files.
    fn add(&mut self, pid: libc::pid_t, index: usize, requests: Vec<Request>) {
        let mut chain: Vec<Change> = Vec::new();
        for request in requests {
            let mut pending = Pending::default();
            match &request.kind {
                RequestKind::Other => {}
                RequestKind::Rename(given) => {
                    if let Some(renames) = given.resolve(pid, &self.job.disk) {
                        self.disk.report_renames(renames);
                    }
                }
                RequestKind::Empty(directory, name) => {
                    pending.writes = self.note_emptying(pid, *directory, *name);
                }
                RequestKind::Flush | RequestKind::Write | RequestKind::Truncate => {
                    let before = self.collect_earlier_changes(index, &request, &chain);
                    self.track_request(pid, index, &request, before, &mut pending);
                }
            }
            if request.linked {
                chain.extend(pending.writes.clone());
            } else {
                chain.clear();
            }
            let others = self.queues.iter().any(|one| one.queue.busy());
            for one in self
                .queues
                .iter_mut()
                .flat_map(|one| one.queue.iterate_stored())
            {
                one.beside = true;
            }
            pending.beside = others;
            self.queues[index].queue.add(&request, pending);
        }
    }

    /// Collects the changes made before a request begins: by the requests before it in its chain, and by all others if
    /// it waits for them.
    fn collect_earlier_changes(
        &mut self,
        index: usize,
        request: &Request,
        chain: &[Change],
    ) -> Vec<Change> {
        let mut found = chain.to_vec();
        if request.drained {
            let all = self.queues[index].queue.iterate_stored();
            found.extend(all.filter_map(|one| one.writes.clone()));
        }
        found
    }

    /// Notes that a file is about to be truncated when it is opened.
    fn note_emptying(&mut self, pid: libc::pid_t, directory: i32, name: u64) -> Option<Change> {
        let path = resolve_file(pid, directory, name)?;
        if !path.starts_with(&self.job.disk) {
            return None;
        }
        let change = Change {
            key: key(&fs::metadata(path).ok()?),
            bytes: 0..u64::MAX,
            shorter: true,
        };
        self.disk.note_truncation(change.key, 0);
        self.note_change(&change);
        Some(change)
    }

    /// Returns where a request to append begins: behind those that it waits for. `None` if others are in progress, any
    /// of which may come first.
    fn find_append(&mut self, length: u64, key: Key, before: &[Change]) -> Option<u64> {
        let is_behind = |one: &&Change| one.key == key && one.bytes.end > length;
        let queued = self
            .queues
            .iter_mut()
            .flat_map(|one| one.queue.iterate_stored());
        let others = queued.filter_map(|one| one.writes.as_ref());
        if others.filter(is_behind).any(|one| !before.contains(one)) {
            return None;
        }
        let ends = before.iter().filter(is_behind).map(|one| one.bytes.end);
        Some(ends.fold(length, u64::max))
    }

    fn track_request(
        &mut self,
        pid: libc::pid_t,
        index: usize,
        request: &Request,
        before: Vec<Change>,
        pending: &mut Pending,
    ) {
        let flush = request.kind == RequestKind::Flush;
        let target = match request.file {
            RequestFile::Descriptor(descriptor) => match self.find_target(pid, descriptor) {
                Some(target) => Rc::new(target),
                None => return,
            },
            RequestFile::Fixed(number) => match self.queues[index].files.get(number as usize) {
                Some(Some(target)) => Rc::clone(target),
                Some(None) => return,
                None => {
                    let why = OTHER_REGISTRATION;
                    self.disk.elsewhere.insert(why);
                    return;
                }
            },
        };
        let (Ok(file), Ok(about)) = (target.file.try_clone(), target.file.metadata()) else {
            return self.lose_track("its asynchronous I/O requests cannot be read");
        };
        let write = request.kind == RequestKind::Write;
        let asked = u64::from(request.flags);
        let through = write && WITH_DATA.are_in(target.flags, asked);
        let mut bytes = request.bytes.clone();
        if !flush {
            let mut place = Some(bytes.start).filter(|at| *at != u64::MAX);
            if write && (target.flags & libc::O_APPEND != 0 || asked & RWF_APPEND != 0) {
                place = self.find_append(about.len(), key(&about), &before);
            }
            let length = bytes.end.saturating_sub(bytes.start);
            bytes = place.map_or(0..u64::MAX, |at| at..at.saturating_add(length));
            let change = Change {
                key: key(&about),
                bytes: bytes.clone(),
                shorter: !write,
            };
            if !write {
                self.disk.note_truncation(change.key, bytes.start);
            }
            self.note_change(&change);
            pending.writes = Some(change);
            if place.is_none() {
                if through {
                    let why = "it writes with io_uring where another request or the file's position says, which cannot be followed";
                    self.disk.elsewhere.insert(why);
                }
                return;
            }
        }
        if request.silent && (flush || through) {
            let why = "it flushes with io_uring without requesting a completion";
            self.disk.elsewhere.insert(why);
        } else if flush && target.directory {
            let began = names(&target.path).ok();
            let promise = Promise::Directory(target.path.clone(), began);
            pending.call = Some(Call::of(FSYNC, promise));
        } else if flush || through {
            let Ok(held) = self.disk.read(&file) else {
                return self.lose_track("its asynchronous I/O requests cannot be read");
            };
            let mine = before.into_iter().filter(|one| one.key == key(&about));
            pending.written = mine.collect();
            let name = match (flush, request.flags & 1) {
                (true, 1) => "fdatasync",
                (true, _) => FSYNC,
                (false, _) => WRITE,
            };
            let promise = Promise::File(file, bytes, Some(held));
            let mut call = Call::of(name, promise);
            call.promises_name |= through && WITH_NAME.are_in(target.flags, asked);
            pending.call = Some(call);
        }
    }

    /// Notes the files to which requests of an `io_uring` refer by number.
    pub(super) fn register(&mut self, pid: libc::pid_t, arguments: &[u64; 6]) {
        let process = find_process(pid);
        let by_number = arguments[1] >> 31 & 1 == 1;
        let (operation, count) = (arguments[1] & 0x7fff_ffff, arguments[3]);
        let found = if by_number {
            (self.queues.len() == 1).then_some(0)
        } else {
            let descriptor = arguments[0] as i32;
            let mut queues = self.queues.iter();
            queues.position(|one| one.queue.is_uring(process, descriptor))
        };
        let Some(index) = found else {
            if [REGISTER_FILES, REPLACE_FILES, RESIZE].contains(&operation)
                || OTHER_FILES.contains(&operation)
            {
                self.lose_track(OTHER_REGISTRATION);
            }
            return;
        };
        let memory = Memory::of(pid).ok();
        let mut named = |first: usize, at: u64| {
            for place in 0..count.min(1 << 16) {
                let bytes = memory.as_ref().and_then(|it| it.bytes(at + place * 4));
                let descriptor = bytes.map_or(-1, i32::from_ne_bytes);
                let target = self.find_target(pid, descriptor).map(Rc::new);
                let files = &mut self.queues[index].files;
                let place = first + place as usize;
                files.resize_with(files.len().max(place + 1), || None);
                files[place] = target;
            }
        };
        match operation {
            REGISTER_FILES => named(0, arguments[2]),
            REPLACE_FILES => {
                let words = memory
                    .as_ref()
                    .and_then(|it| it.bytes::<16>(arguments[2]))
                    .unwrap_or_default();
                let first = u32::from_ne_bytes(words[..4].try_into().expect("four bytes"));
                let at = u64::from_ne_bytes(words[8..].try_into().expect("eight bytes"));
                named(first as usize, at);
            }
            RESIZE => self.lose_track("it resizes an io_uring, which cannot be followed"),
            _ if OTHER_FILES.contains(&operation) => {
                self.lose_track(OTHER_REGISTRATION);
            }
            _ => {}
        }
    }

    /// Collects requests that the kernel has completed; so far only the program itself can have learnt of their
    /// results.
    pub(super) fn collect(&mut self) -> io::Result<()> {
        for index in 0..self.queues.len() {
            let Some(done) = self.queues[index].queue.take_completed() else {
                self.lose_track("its asynchronous I/O requests cannot be read");
                continue;
            };
            let changes: Vec<Option<Change>> =
                done.iter().map(|(one, _)| one.writes.clone()).collect();
            for change in changes.iter().flatten() {
                self.note_change(change);
            }
            for (number, (mut pending, result)) in done.into_iter().enumerate() {
                for (other, change) in changes.iter().enumerate() {
                    if let Some(change) = change.as_ref().filter(|_| other != number) {
                        pending.disturb(change);
                    }
                }
                let Some(mut call) = pending.call else {
                    continue;
                };
                if result < 0 {
                    continue;
                }
                if let Promise::File(file, bytes, Some(mut old)) = call.promise {
                    for change in &pending.written {
                        old = self.disk.as_written(&file, old, &change.bytes)?;
                    }
                    call.promise = Promise::File(file, bytes, Some(old));
                }
                let exact = self.writes_alone() && !pending.beside;
                self.report_promise(call, result as u64, exact)?;
            }
        }
        Ok(())
    }
}
