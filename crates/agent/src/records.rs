//! `guestmark-agent records`: writes numbered records, each of which is made durable before the next one is begun.
//!
//! With a log of the writes on the disk below, a reader knows without a clock what had been acknowledged at any moment:
//! a byte of record `k + 1` in the log shows that the call which made record `k` durable had returned. With `--each`,
//! the number of each record is printed once that call has returned, and the next record waits for a byte of standard
//! input.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How a record is written and made durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Appended, then `fsync`.
    Append,
    /// Written to a file of its own, `fsync`, renamed over the previous one, `fsync` of the directory.
    Replace,
    /// Written over an old record in an existing file, then `fdatasync`.
    Overwrite,
    /// Appended to a file that was opened with `O_DSYNC`.
    Dsync,
}

/// Length of one line of a record in bytes: tag, number and padding.
const LINE: usize = 64;
/// Number of records that fit into an overwritten file.
const SLOTS: u64 = 8;

struct Job {
    method: Method,
    tag: String,
    first: u64,
    count: u64,
    size: usize,
    each: bool,
    path: PathBuf,
}

/// Writes the records; prints their number at the end.
pub fn write_records(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let Some(job) = parse(arguments) else {
        eprintln!(
            "usage: guestmark-agent records --method append|replace|overwrite|dsync --tag TAG --first K --count N \
             --size BYTES [--each] PATH"
        );
        return Ok(ExitCode::from(125));
    };
    match job.method {
        Method::Append => append(&job, 0)?,
        Method::Dsync => append(&job, libc::O_DSYNC)?,
        Method::Replace => replace(&job)?,
        Method::Overwrite => overwrite(&job)?,
    }
    if !job.each {
        println!("{}", job.count);
    }
    Ok(ExitCode::SUCCESS)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Option<Job> {
    use lexopt::prelude::*;
    let mut job = Job {
        method: Method::Append,
        tag: String::new(),
        first: 0,
        count: 0,
        size: 0,
        each: false,
        path: PathBuf::new(),
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().ok()? {
        match argument {
            Long("method") => {
                job.method = match parser.value().ok()?.to_str()? {
                    "append" => Method::Append,
                    "replace" => Method::Replace,
                    "overwrite" => Method::Overwrite,
                    "dsync" => Method::Dsync,
                    _ => return None,
                }
            }
            Long("tag") => job.tag = parser.value().ok()?.into_string().ok()?,
            Long("first") => job.first = parser.value().ok()?.parse().ok()?,
            Long("count") => job.count = parser.value().ok()?.parse().ok()?,
            Long("each") => job.each = true,
            Long("size") => job.size = parser.value().ok()?.parse().ok()?,
            Value(path) => job.path = path.into(),
            _ => return None,
        }
    }
    let fits = job.size > 0 && job.size % LINE == 0 && job.tag.len() <= LINE / 2;
    (fits && job.path.is_absolute()).then_some(job)
}

/// Reports that a record is durable, and waits until the report has been read.
fn acknowledge(job: &Job, number: u64) -> io::Result<()> {
    if job.each {
        println!("{number}");
        io::stdin().lock().read_exact(&mut [0])?;
    }
    Ok(())
}

/// Makes a record. Every line contains the record's number, so that a torn record is recognised.
fn make_record(job: &Job, number: u64) -> Vec<u8> {
    let mut line = format!("{}{number:08};", job.tag).into_bytes();
    line.resize(LINE, b'a' + (number % 26) as u8);
    line.repeat(job.size / LINE)
}

fn list_numbers(job: &Job) -> std::ops::Range<u64> {
    job.first..job.first + job.count
}

/// Syncs the directory: the `fsync` of a file need not make its name durable, and on a filesystem without a journal,
/// such as ext2, it does not.
fn sync_directory(job: &Job) -> io::Result<()> {
    File::open(job.path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn append(job: &Job, flags: i32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .custom_flags(flags)
        .open(&job.path)?;
    sync_directory(job)?;
    for number in list_numbers(job) {
        file.write_all(&make_record(job, number))?;
        if flags == 0 {
            file.sync_all()?;
        }
        acknowledge(job, number)?;
    }
    Ok(())
}

fn replace(job: &Job) -> io::Result<()> {
    let fresh = job.path.with_extension("new");
    for number in list_numbers(job) {
        let mut file = File::create(&fresh)?;
        file.write_all(&make_record(job, number))?;
        file.sync_all()?;
        drop(file);
        std::fs::rename(&fresh, &job.path)?;
        sync_directory(job)?;
        acknowledge(job, number)?;
    }
    Ok(())
}

fn overwrite(job: &Job) -> io::Result<()> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&job.path)?;
    let at = |number: u64| (number % SLOTS) * job.size as u64;
    if file.metadata()?.len() < SLOTS * job.size as u64 {
        // Allocate the blocks before the first record, so that no record changes the file's metadata.
        for slot in 0..SLOTS {
            file.write_all_at(&vec![b'-'; job.size], at(slot))?;
        }
        file.sync_all()?;
    }
    sync_directory(job)?;
    for number in list_numbers(job) {
        file.write_all_at(&make_record(job, number), at(number))?;
        file.sync_data()?;
        acknowledge(job, number)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{make_record, parse};

    fn job(arguments: &[&str]) -> Option<super::Job> {
        parse(arguments.iter().map(std::ffi::OsString::from))
    }

    #[test]
    fn a_record_names_itself_in_every_line() {
        let job = job(&[
            "--tag", "gm:", "--count", "1", "--size", "128", "--method", "dsync", "/r",
        ])
        .unwrap();
        let made = make_record(&job, 27);
        assert_eq!(made.len(), 128);
        assert!(made
            .chunks(64)
            .all(|line| line.starts_with(b"gm:00000027;bbb")));
    }

    #[test]
    fn what_is_no_job_is_refused() {
        assert!(job(&["--tag", "gm:", "--size", "100", "/r"]).is_none());
        assert!(job(&["--tag", "gm:", "--size", "64", "relative"]).is_none());
        assert!(job(&["--method", "hope", "--size", "64", "/r"]).is_none());
    }
}
