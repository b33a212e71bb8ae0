//! `guestmark-agent syscalls`: measures how long system calls take on this machine, with a fixed mix of operations (see
//! [`mix`]).
//!
//! This is a separate program, started by the agent like any other: the agent's own threads and its reaping of children
//! do not disturb it, and the agent enforces its time limit. It uses one processor, so that hosts with many processors
//! and guests with one do the same.

mod mix;
mod operation;
mod partner;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use guestmark_wire::syscalls::{Measured, Ready, SyscallEvent};

use crate::sys;
use mix::{BatchedOperation, Nothing};

/// Name of a part without operations; as a command it does nothing, so that `exec` can be measured.
pub const NOTHING: &str = "nothing";
/// Name of a part that computes for the given time, in one batch without system calls.
pub const COMPUTE: &str = "compute";
/// A batch takes one part in this many of an operation's minimum time, which yields enough batches for a median.
const BATCHES: u64 = 20;
/// Maximum length of a batch, so that a disturbance does not affect many operations at once.
const LONGEST_BATCH_NS: u64 = 5_000_000;

/// Lower bound for the time of one iteration of an empty loop, for clocks too coarse to measure it.
const LEAST_TURN_NS: f64 = 0.1;

/// The minimum amount of work for each operation.
struct Effort {
    operations: u64,
    time_ns: u64,
}

/// Measures the named operations, or all by default; arguments: `--operations N --time NS [NAME]...`.
pub fn time_system_calls(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let (effort, names) = parse(arguments).ok_or_else(|| {
        io::Error::other("usage: guestmark-agent syscalls --operations N --time NS [NAME]...")
    })?;
    for name in &names {
        if name != COMPUTE && !mix::ALL.iter().any(|(known, _)| known == name) {
            return Err(io::Error::other(format!("there is no operation {name}")));
        }
    }
    stay_on_one_processor()?;
    let overhead = Overhead::measure()?;
    if !run_section(NOTHING, || Ok(Vec::new()), &overhead, None)? {
        return Ok(ExitCode::SUCCESS);
    }
    if names.iter().any(|wanted| wanted == COMPUTE) {
        let turns = effort.time_ns as f64 / overhead.turn_ns.max(LEAST_TURN_NS);
        let computed = || Ok(vec![Nothing.batch(turns as u64)?]);
        if !run_section(COMPUTE, computed, &overhead, None)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    for (name, make) in mix::ALL {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            let said = |error| io::Error::other(format!("{name}: {error}"));
            let mut operation = make().map_err(said)?;
            let batch = warm_up(&mut *operation, &effort).map_err(said)?;
            let partner = operation.partner();
            let timed = || run_batches(&mut *operation, batch, &effort).map_err(said);
            if !run_section(name, timed, &overhead, partner)? {
                break;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Option<(Effort, Vec<String>)> {
    use lexopt::prelude::*;
    let mut effort = Effort {
        operations: 0,
        time_ns: 0,
    };
    let mut names = Vec::new();
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().ok()? {
        match argument {
            Long("operations") => effort.operations = parser.value().ok()?.parse().ok()?,
            Long("time") => effort.time_ns = parser.value().ok()?.parse().ok()?,
            Value(name) => names.push(name.into_string().ok()?),
            _ => return None,
        }
    }
    (effort.operations > 0 && effort.time_ns > 0).then_some((effort, names))
}

/// Binds this process and its children to the last processor that it may use.
fn stay_on_one_processor() -> io::Result<()> {
    // SAFETY: the set is plain data, valid when all zero; the calls read and write that many bytes of it.
    unsafe {
        let size = size_of::<libc::cpu_set_t>();
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        sys::check(libc::sched_getaffinity(0, size, &raw mut set))?;
        let last = (0..libc::CPU_SETSIZE as usize)
            .rev()
            .find(|&cpu| libc::CPU_ISSET(cpu, &set))
            .unwrap_or(0);
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(last, &mut set);
        sys::check(libc::sched_setaffinity(0, size, &raw const set)).map(drop)
    }
}

/// One batch: the number of operations, and nanoseconds from before the first to after the last.
type Batch = (u64, u64);

/// Determines how many operations a batch must have to be long enough. The operations made here are not counted; they
/// warm the caches.
fn warm_up(operation: &mut dyn BatchedOperation, effort: &Effort) -> io::Result<u64> {
    let wanted_ns = (effort.time_ns / BATCHES).clamp(1, LONGEST_BATCH_NS);
    let mut count = 1;
    loop {
        if operation.batch(count)?.1 >= wanted_ns {
            // Run it once more: a disturbance may have made the first batch long.
            let (_, took_ns) = operation.batch(count)?;
            if took_ns >= wanted_ns {
                // The batch found by doubling may be almost twice as long as wanted.
                return Ok((count * wanted_ns / took_ns).max(1));
            }
        }
        count *= 2;
    }
}

fn run_batches(
    operation: &mut dyn BatchedOperation,
    count: u64,
    effort: &Effort,
) -> io::Result<Vec<Batch>> {
    let mut batches = Vec::new();
    let (mut operations, mut time_ns) = (0, 0);
    while operations < effort.operations || time_ns < effort.time_ns {
        let done = operation.batch(count)?;
        operations += done.0;
        time_ns += done.1;
        batches.push(done);
    }
    Ok(batches)
}

/// The overhead of loop and clock that every measurement includes, in nanoseconds.
struct Overhead {
    turn_ns: f64,
    clock_ns: f64,
}

impl Overhead {
    fn measure() -> io::Result<Self> {
        const TURNS: u64 = 100_000;
        let median_of = |count: u64| -> io::Result<f64> {
            let mut times = (0..31)
                .map(|_| Ok(Nothing.batch(count)?.1 as f64))
                .collect::<io::Result<Vec<_>>>()?;
            Ok(median(&mut times))
        };
        let clock_ns = median_of(0)?;
        let turn_ns = (median_of(TURNS)? - clock_ns).max(0.0) / TURNS as f64;
        Ok(Self { turn_ns, clock_ns })
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Waits for the controller's byte, runs the timed part, reports the result, and waits again. Returns `false` if the
/// controller has disconnected.
fn run_section(
    name: &str,
    work: impl FnOnce() -> io::Result<Vec<Batch>>,
    overhead: &Overhead,
    partner: Option<libc::pid_t>,
) -> io::Result<bool> {
    send_event(&SyscallEvent::Ready(Ready {
        name: name.to_owned(),
    }))?;
    if !await_go()? {
        return Ok(false);
    }
    let before_ns = read_processor_ns(partner)?;
    let batches = work()?;
    let cpu_ns = read_processor_ns(partner)?.saturating_sub(before_ns);
    let mut each: Vec<f64> = batches
        .iter()
        .map(|&(count, took)| (took as f64 - overhead.clock_ns) / count as f64 - overhead.turn_ns)
        .collect();
    send_event(&SyscallEvent::Measured(Measured {
        name: name.to_owned(),
        operations: batches.iter().map(|one| one.0).sum(),
        batches: batches.len() as u64,
        elapsed_ns: batches.iter().map(|one| one.1).sum(),
        cpu_ns,
        median_ns: median(&mut each),
        lowest_ns: each.first().copied().unwrap_or(0.0),
        loop_ns: overhead.turn_ns,
        clock_ns: overhead.clock_ns,
    }))?;
    await_go()
}

/// Reads one byte from the controller; returns `false` at the end of the input.
fn await_go() -> io::Result<bool> {
    Ok(io::stdin().lock().read(&mut [0])? == 1)
}

fn send_event(event: &SyscallEvent) -> io::Result<()> {
    let body = rmp_serde::to_vec_named(event).map_err(io::Error::other)?;
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    let mut out = io::stdout().lock();
    out.write_all(&frame)?;
    out.flush()
}

/// Returns the processor time so far of this process, of its ended children, and of the `partner`, which is still
/// running.
fn read_processor_ns(partner: Option<libc::pid_t>) -> io::Result<u64> {
    let mut total = sys::clock_ns(rustix::time::ClockId::ProcessCPUTime) + sys::read_children_ns();
    if let Some(pid) = partner {
        total += sys::read_process_cpu_ns(pid)?;
    }
    Ok(total)
}
