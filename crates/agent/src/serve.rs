//! Answers the controller in a loop of a single thread. Work that may take long is therefore done in steps.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::{Arg, ValueExt};

use guestmark_wire::{Answer, Call, Done, Failed, Kind, Phase, Request};

use crate::bulk::Bulk;
use crate::channel::{self, Channel};
use crate::exec::{open_oom_counts, Job};
use crate::failure::failure;
use crate::frame::{Decoder, Outbox};
use crate::renewal::await_renewal;
use crate::transfer::Transfer;
use crate::{calls, keep, lock, reap, sys};

/// Maximum number of unsent bytes up to which further answers are produced.
const OUTBOX_LIMIT: usize = 4 << 20;
/// How long to wait for killed processes to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why serving ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The controller has disconnected.
    Gone,
    /// The controller has asked to power the machine off.
    PowerOff,
    /// The controller has ended the conversation, and its channel stays open.
    Left,
    /// A signal has asked us to exit.
    Signal(i32),
    /// The controller sent something that is not a frame, or the channel failed.
    Broken(String),
}

/// Exit status when the controller has ended the conversation and its channel stays open.
pub const LEFT: u8 = 64;

/// `guestmark-agent serve [--channel NAME] [--alive SECONDS] [--ahead FD] [--remove DIR] [--template]` serves on a channel
/// of the kinds that process 1 knows (`init`), or else on standard input and output. The greeting contains the time at
/// which this program began. The directory is removed at the end, unless the channel stays open. With `--template` the
/// machine may be saved before that; see [`await_renewal`].
pub fn serve_stdio(
    arguments: impl Iterator<Item = OsString>,
    began_ns: u64,
) -> io::Result<ExitCode> {
    let options = parse_options(arguments)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let signals =
        sys::reset_and_block_signals(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    sys::close_inherited_on_exec();
    let switches_off = options.channel.is_some();
    let channel = match &options.channel {
        Some(name) => Channel {
            alive: options.alive,
            ahead: options.ahead,
            ..channel::open(name)?
        },
        None => Channel {
            input: sys::duplicate(0)?,
            output: sys::duplicate(1)?,
            may_be_absent: false,
            window: None,
            alive: options.alive,
            ahead: options.ahead,
        },
    };
    let null = File::options().read(true).write(true).open("/dev/null")?;
    sys::duplicate_onto(null.as_fd(), 0)?;
    sys::duplicate_onto(null.as_fd(), 1)?;
    sys::become_subreaper()?;
    if channel.ahead.is_some() {
        // If the parent is killed, shut down in order, so that everything this agent has started ends too.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    if options.template {
        await_renewal(&channel)?;
    }
    let began = Phase {
        name: "began".to_owned(),
        at_ns: began_ns,
    };
    let end = serve(&channel, &signals, vec![began], || ());
    if let Some(directory) = options.removed.filter(|_| end != End::Left) {
        keep::remove(&directory);
    }
    options.holds.remove_unkept();
    if end == End::PowerOff && switches_off {
        // The machine's own init stops its services in order.
        std::process::Command::new("poweroff").status()?;
    }
    match end {
        End::Gone | End::PowerOff => Ok(ExitCode::SUCCESS),
        End::Left => Ok(ExitCode::from(LEFT)),
        End::Signal(signal) => Ok(ExitCode::from((128 + signal) as u8)),
        End::Broken(why) => Err(io::Error::other(why)),
    }
}

#[derive(Default)]
struct Options {
    channel: Option<String>,
    alive: Option<Duration>,
    ahead: Option<File>,
    removed: Option<PathBuf>,
    template: bool,
    holds: keep::HeldDescriptors,
}

fn parse_options(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut found = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("channel") => found.channel = Some(parser.value()?.parse()?),
            Arg::Long("alive") => {
                found.alive = Some(Duration::from_secs(parser.value()?.parse::<u16>()?.into()));
            }
            Arg::Long("ahead") => {
                let inherited = parser.value()?.parse::<u16>()?;
                found.ahead = Some(File::from(sys::duplicate(inherited.into()).map_err(
                    |error| lexopt::Error::from(format!("--ahead {inherited}: {error}")),
                )?));
            }
            Arg::Long("hold") => found.holds.take(parser.value()?.parse()?)?,
            Arg::Long("remove") => found.removed = Some(keep::require_removable(parser.value()?)?),
            Arg::Long("template") => found.template = true,
            other => return Err(other.unexpected()),
        }
    }
    Ok(found)
}

/// Greets the controller and answers it until the end; then kills everything that it has started.
///
/// `before_calls` runs after the greeting has been sent, so as not to delay it, and before any call.
pub fn serve(
    channel: &Channel,
    signals: &OwnedFd,
    phases: Vec<Phase>,
    before_calls: impl FnOnce(),
) -> End {
    let bulk = match Bulk::new() {
        Ok(bulk) => bulk,
        Err(error) => return End::Broken(format!("pipe: {error}")),
    };
    let mut server = Server {
        bulk,
        signals,
        oom_counts: open_oom_counts(),
        out: Outbox::default(),
        jobs: Vec::new(),
        transfers: Vec::new(),
        ended: Vec::new(),
        phases,
        window: channel.window,
        ahead: channel.ahead.as_ref(),
        alive: channel.alive.map(|every| (every, Instant::now() + every)),
    };
    sys::release_freed_memory_eagerly();
    let end = server
        .run(channel, before_calls)
        .unwrap_or_else(|error| End::Broken(format!("channel: {error}")));
    for job in &server.jobs {
        job.signal(libc::SIGKILL);
    }
    reap::sweep(signals.as_fd(), PATIENCE, |_| true, drop);
    end
}

struct Server<'a> {
    signals: &'a OwnedFd,
    oom_counts: Option<File>,
    out: Outbox,
    jobs: Vec<Job>,
    transfers: Vec<Transfer>,
    bulk: Bulk,
    /// Programs that ended while another one's remaining processes were being killed.
    ended: Vec<(sys::Reaped, u64)>,
    phases: Vec<Phase>,
    window: Option<u32>,
    /// Receives bytes of the channel's next conversation that have been read already.
    ahead: Option<&'a File>,
    /// Interval and next time of writing an empty line to standard error.
    alive: Option<(Duration, Instant)>,
}

/// Whether this is the error by which a terminal, a socket or a pipe reports that the other side has closed.
fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::ECONNRESET | libc::EPIPE)
    )
}

/// Reads what is available of the current frame before anything else is handled, since a virtio port returns only one
/// page at a time. The next read reports any error of the channel again.
fn take_frame(input: RawFd, decoder: &mut Decoder) {
    while decoder.wanted() > 0 {
        match sys::read(input, decoder.space()) {
            Ok(Some(count)) if count > 0 => decoder.note_received(count),
            _ => return,
        }
    }
}

fn make_poll_entry(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

impl Server<'_> {
    fn run(&mut self, channel: &Channel, before_calls: impl FnOnce()) -> io::Result<End> {
        let (input, output) = (channel.input.as_raw_fd(), channel.output.as_raw_fd());
        sys::set_nonblocking(channel.input.as_fd())?;
        sys::set_nonblocking(channel.output.as_fd())?;
        let mut decoder = Decoder::new();
        if let Some(ahead) = self.ahead {
            decoder.load_leftover(ahead)?;
        }
        let mut absent = channel.may_be_absent;
        let mut fds = Vec::new();
        self.out.push(&Answer {
            id: 0,
            ok: calls::describe_agent(&self.phases, self.window),
        });
        self.out.flush(output)?;
        before_calls();
        if let Some(end) = self.take_requests(&mut decoder, output)? {
            return Ok(end);
        }
        loop {
            self.list_watched(&mut fds, input, output, absent);
            let room = self.out.len() < OUTBOX_LIMIT;
            sys::poll(&mut fds, self.timeout(room, absent))?;
            if fds[0].revents != 0 {
                if let Some(signal) = self.notice_ended() {
                    return Ok(End::Signal(signal));
                }
            }
            self.serve_jobs(&fds[3..]);
            self.send_sign_of_life();
            if absent || fds[1].revents != 0 {
                match sys::read(input, decoder.space()) {
                    Ok(Some(0)) if absent => {}
                    Ok(Some(0)) => return Ok(End::Gone),
                    Err(error) if is_hang_up(&error) => return Ok(End::Gone),
                    Err(error) => return Err(error),
                    Ok(None) => {
                        absent = false;
                        if fds[1].revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                            return Ok(End::Gone);
                        }
                    }
                    Ok(Some(count)) => {
                        absent = false;
                        decoder.note_received(count);
                        if self.window.is_none() {
                            take_frame(input, &mut decoder);
                        }
                        if self.window.is_some() {
                            self.out.acknowledge(count);
                            self.out.flush(output)?;
                        }
                        if let Some(end) = self.take_requests(&mut decoder, output)? {
                            return Ok(end);
                        }
                    }
                }
            }
            if fds.last().is_some_and(|bell| bell.revents != 0) {
                self.bulk.answer_ended(&mut self.out);
            }
            self.settle_ended();
            self.expire();
            self.step_calls();
            match self.out.flush(output) {
                Err(error) if is_hang_up(&error) => return Ok(End::Gone),
                other => other?,
            }
        }
    }

    /// Lists what to wait for: signals, the channel's two sides, then three descriptors for each job, then the bell of
    /// bulk calls.
    fn list_watched(&self, fds: &mut Vec<libc::pollfd>, input: RawFd, output: RawFd, absent: bool) {
        let when = |wanted: bool, events| if wanted { events } else { 0 };
        let listening = !self.jobs.iter().any(Job::is_full);
        fds.clear();
        fds.push(make_poll_entry(self.signals.as_raw_fd(), libc::POLLIN));
        // While a program's input buffer is full, nothing is read from the controller, but its hang-up (always
        // reported) is still noticed. A port reports a hang-up until the controller has connected, which would wake us
        // continually.
        fds.push(make_poll_entry(
            if absent { -1 } else { input },
            when(listening, libc::POLLIN),
        ));
        let sending = self.out.len() > 0 && !absent;
        fds.push(make_poll_entry(
            if sending { output } else { -1 },
            libc::POLLOUT,
        ));
        let room = self.out.len() < OUTBOX_LIMIT;
        for job in &self.jobs {
            for output in &job.outputs {
                let fd = output.fd.as_ref().filter(|_| room);
                fds.push(make_poll_entry(
                    fd.map_or(-1, AsRawFd::as_raw_fd),
                    libc::POLLIN,
                ));
            }
            let fd = job.input.as_ref().filter(|_| job.has_input());
            fds.push(make_poll_entry(
                fd.map_or(-1, AsRawFd::as_raw_fd),
                libc::POLLOUT,
            ));
        }
        fds.push(make_poll_entry(
            self.bulk.wakeup_descriptor().as_raw_fd(),
            libc::POLLIN,
        ));
    }

    /// Reaps children that have exited; returns the signal that asks us to exit, if there was one. The clock is read
    /// when the kernel has reported an exit, before it frees the rest of the process.
    fn notice_ended(&mut self) -> Option<i32> {
        let mut now = sys::monotonic_ns();
        while let Some(child) = sys::reap() {
            self.note_child_end(child, now);
            now = sys::monotonic_ns();
        }
        let taken = std::iter::from_fn(|| sys::take_signal(self.signals.as_fd()));
        taken.filter(|&signal| signal != libc::SIGCHLD).last()
    }

    fn serve_jobs(&mut self, fds: &[libc::pollfd]) {
        for (job, events) in self.jobs.iter_mut().zip(fds.chunks(3)) {
            for (output, event) in job.outputs.iter_mut().zip(events) {
                if event.revents != 0 {
                    output.receive(job.id, &mut self.out);
                }
            }
            if events[2].revents != 0 {
                job.write_input();
            }
        }
    }

    /// Returns the time until the next event that needs no descriptor.
    fn timeout(&self, room: bool, absent: bool) -> Option<Duration> {
        if room && self.transfers.iter().any(Transfer::has_work) {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let deadline = self.jobs.iter().filter_map(|job| job.deadline).min();
        let wait = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let patience = absent.then_some(Duration::from_micros(500));
        let alive = self
            .alive
            .map(|(_, next)| next.saturating_duration_since(now));
        wait.into_iter().chain(patience).chain(alive).min()
    }

    /// Writes the empty line when it is due, so that the program that carries the channel notices if nobody reads it.
    fn send_sign_of_life(&mut self) {
        if let Some((every, next)) = &mut self.alive {
            let now = Instant::now();
            if now >= *next {
                *next = now + *every;
                let _ = sys::write(2, b"\n");
            }
        }
    }

    fn take_requests(&mut self, decoder: &mut Decoder, output: RawFd) -> io::Result<Option<End>> {
        loop {
            let end = match decoder.next_frame() {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => match rmp_serde::from_slice::<Request<'_>>(frame) {
                    Ok(request) => self.answer(request),
                    Err(error) => {
                        let error = failure(Kind::BadRequest, &format!("not a request: {error}"));
                        self.out.push(&Failed { id: 0, error });
                        None
                    }
                },
                Err(oversized) => {
                    return Ok(Some(End::Broken(format!(
                        "a frame of {} bytes was announced",
                        oversized.0
                    ))))
                }
            };
            match end {
                None => self.out.flush(output)?,
                Some(End::Left) => {
                    self.ahead
                        .map_or(Ok(()), |file| decoder.save_leftover(file))?;
                    return Ok(Some(End::Left));
                }
                Some(end) => {
                    while self.out.len() > 0 {
                        self.out.flush(output)?;
                        let mut fds = [make_poll_entry(output, libc::POLLOUT)];
                        sys::poll(&mut fds, Some(Duration::from_secs(1)))?;
                    }
                    return Ok(Some(end));
                }
            }
        }
    }

    /// Answers a request, or starts a call. Returns the reason to end if the request ends the serving.
    fn answer(&mut self, request: Request<'_>) -> Option<End> {
        let id = request.id;
        if request.ahead && lock::is_refused() {
            let error = failure(Kind::InUse, "the machine is in use");
            self.out.push(&Failed { id, error });
            return None;
        }
        match request.call {
            Call::Clock => self.out.push(&Answer {
                id,
                ok: calls::read_clocks(),
            }),
            Call::Exec(exec) => match Job::start(id, &exec, self.oom_counts.as_ref()) {
                Ok(job) => self.jobs.push(job),
                Err(error) => self.out.push(&Failed { id, error }),
            },
            Call::Data(data) => {
                if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
                    job.feed(data);
                } else {
                    self.transfer(id, |transfer, out| transfer.feed(data, out));
                }
            }
            Call::End => {
                if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
                    job.end_input();
                } else {
                    self.transfer(id, Transfer::end);
                }
            }
            Call::Kill(kill) => {
                if let Some(job) = self.jobs.iter().find(|job| job.id == id) {
                    job.signal(kill.signal);
                }
            }
            Call::Winsize(size) => {
                if let Some(job) = self.jobs.iter().find(|job| job.id == id) {
                    job.resize(size);
                }
            }
            Call::ReadFile(_)
            | Call::WriteFile(_)
            | Call::WriteStream(_)
            | Call::Sink
            | Call::Sha256(_) => match Transfer::start(id, request.call) {
                Ok(transfer) => self.transfers.push(transfer),
                Err(error) => self.out.push(&Failed { id, error }),
            },
            Call::Copy(_)
            | Call::Fill(_)
            | Call::ReadBack(_)
            | Call::Checksum(_)
            | Call::ChecksumOfPattern(_)
            | Call::Flush(_)
            | Call::DropCaches => self.bulk.start(id, request.call, &mut self.out),
            Call::Hello => self.out.push(&Answer {
                id,
                ok: calls::describe_agent(&self.phases, self.window),
            }),
            Call::PowerOff => {
                rustix::fs::sync();
                self.out.push(&Answer { id, ok: Done {} });
                return Some(End::PowerOff);
            }
            Call::Leave if self.ahead.is_some() => return Some(End::Left),
            other => calls::answer(id, other, &mut self.out),
        }
        None
    }

    fn transfer(&mut self, id: u64, act: impl FnOnce(&mut Transfer, &mut Outbox) -> bool) {
        if let Some(at) = self.transfers.iter().position(|transfer| transfer.id == id) {
            if act(&mut self.transfers[at], &mut self.out) {
                self.transfers.swap_remove(at);
            }
        }
    }

    /// Runs one step of every call that is done in steps.
    fn step_calls(&mut self) {
        let out = &mut self.out;
        self.transfers
            .retain_mut(|transfer| out.len() >= OUTBOX_LIMIT || !transfer.step(out));
    }

    fn expire(&mut self) {
        let now = Instant::now();
        for job in &mut self.jobs {
            if job.deadline.is_some_and(|deadline| deadline <= now) {
                job.expire();
            }
        }
    }

    fn note_child_end(&mut self, child: sys::Reaped, ended_ns: u64) {
        if self.jobs.iter().any(|job| job.pid == child.pid) {
            self.ended.push((child, ended_ns));
        }
    }

    /// Finishes the calls whose program has ended.
    fn settle_ended(&mut self) {
        while let Some((child, ended_ns)) = self.ended.pop() {
            let Some(at) = self.jobs.iter().position(|job| job.pid == child.pid) else {
                continue;
            };
            let job = self.jobs.swap_remove(at);
            let leaders: Vec<_> = self.jobs.iter().map(|job| job.pid).collect();
            let mine = |pid| {
                if leaders.is_empty() {
                    return true;
                }
                // While another program is running, an orphan belongs to this one only if its session or process group
                // shows it.
                !leaders.contains(&pid)
                    && reap::Stat::of(pid)
                        .is_some_and(|stat| stat.session == job.pid || stat.group == job.pid)
            };
            let mut others = Vec::new();
            let leftovers = reap::sweep(self.signals.as_fd(), PATIENCE, mine, |other| {
                others.push((other, sys::monotonic_ns()));
            });
            for (other, at) in others {
                self.note_child_end(other, at);
            }
            job.finish(
                &child,
                ended_ns,
                leftovers,
                self.oom_counts.as_ref(),
                &mut self.out,
            );
        }
    }
}
