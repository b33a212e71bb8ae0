//! `guestmark-agent world`: runs a program in namespaces of its own; everything in them ends with the program.
//!
//! The program has its own network with a loopback device, its own processes, and its own `$HOME`. It sees all files of
//! the host and changes none: files in `/tmp`, `/var/tmp`, `/run` and `/dev/shm` are written to memory and vanish with
//! it, and everything else except the named directory is read-only. Two such programs therefore do not disturb each
//! other. Root loses the capabilities to undo this or to change what the host has only once, such as its clock, and can
//! open only harmless devices.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::ValueExt;

use crate::confine::cage::{self, EnteredAs, Namespaces};
use crate::confine::gauge::Gauge;
use crate::confine::mounts::{make_read_only, Layout, MEMORY, TEMPORARY};
use crate::confine::{become_command, drop_rights_over_host, ENDED_FIRST, FAILED};
use crate::init::bring_up_loopback;
use crate::options::{read_until_command, to_io_error};
use crate::sys;

const COVERED: [&CStr; 2] = [c"/run", c"/var/tmp"];
/// Harmless devices: writing to them changes nothing on this host.
const HARMLESS: [&CStr; 7] = [
    c"/dev/null",
    c"/dev/zero",
    c"/dev/full",
    c"/dev/random",
    c"/dev/urandom",
    c"/dev/tty",
    c"/dev/kvm",
];
const HOME: &str = "/tmp/guestmark-home";
/// Enough processes for any program, and few enough to leave some for the host.
const PROCESSES: u32 = 16 << 10;

#[derive(Debug)]
struct Options {
    /// An empty directory, below which files that are written outside the named directory are stored.
    room: PathBuf,
    writable: Vec<PathBuf>,
    /// A file to create; a line is written to it if the memory for written files was full.
    note: Option<PathBuf>,
    /// How many bytes the program may write to memory.
    memory: Option<u64>,
    command: Vec<OsString>,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let (mut room, mut writable) = (None, Vec::new());
    let (mut note, mut memory) = (None, None);
    let command = read_until_command(arguments, |name, parser| {
        match name {
            "room" => room = Some(parser.value()?.into()),
            "writable" => writable.push(parser.value()?.into()),
            "memory" => memory = Some(parser.value()?.parse()?),
            "note-full" => note = Some(parser.value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(Options {
        room: room.ok_or("--room is missing")?,
        writable,
        note,
        memory,
        command,
    })
}

/// Runs the program and exits with its status, or with 125 if the namespaces cannot be created.
pub fn run_in_world(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let options = parse(arguments).map_err(|error| to_io_error(&error))?;
    let _ = std::fs::write("/proc/self/oom_score_adj", ENDED_FIRST);
    // The file could not be created from inside.
    let note = options.note.as_ref().map(File::create).transpose()?;
    let namespaces = Namespaces {
        user: false,
        network: true,
    };
    match cage::enter_namespaces(namespaces, None)? {
        EnteredAs::Done(status) => Ok(status),
        EnteredAs::Outside => Err(io::Error::other("namespaces cannot be created here")),
        EnteredAs::Inside(first) => {
            let gauge = match mount_private_files(&options).and_then(|()| make_gauge(note)) {
                Ok(gauge) => gauge,
                Err(error) => {
                    eprintln!("guestmark-agent: {error}");
                    first.fail(FAILED);
                }
            };
            first.fork(None, None, gauge)?;
            let unset =
                std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"XDG_"));
            unset.for_each(|(name, _)| std::env::remove_var(name));
            std::env::set_var("HOME", HOME);
            std::env::set_var("TMPDIR", "/tmp");
            drop_rights_over_host()?;
            become_command(&options.command)
        }
    }
}

fn mount_private_files(options: &Options) -> io::Result<()> {
    bring_up_loopback();
    let path =
        |path: &PathBuf| sys::make_cstring(std::fs::canonicalize(path)?.as_os_str().as_bytes());
    let writable = options
        .writable
        .iter()
        .map(path)
        .collect::<io::Result<Vec<_>>>()?;
    let done = make_read_only(&Layout {
        writable: &writable,
        over_temporary: Some(&path(&options.room)?),
        covered: &COVERED,
        own_memory: true,
        memory_size: options.memory,
        devices: Some(&HARMLESS),
        processes: Some(PROCESSES),
    })?;
    if !(done.read_only && done.over_temporary && done.own_memory) {
        return Err(io::Error::other(
            "filesystems cannot be mounted in a namespace here",
        ));
    }
    std::fs::create_dir_all(HOME)
}

fn make_gauge(note: Option<File>) -> io::Result<Option<Gauge>> {
    note.map(|note| Gauge::new(note, &[TEMPORARY, MEMORY]))
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    fn parse(words: &[&str]) -> Result<super::Options, String> {
        super::parse(words.iter().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        let words = [
            "--room",
            "/r",
            "--writable",
            "/d",
            "--",
            "sh",
            "--room",
            "x",
        ];
        let options = parse(&words).unwrap();
        assert_eq!(options.room, std::path::Path::new("/r"));
        assert_eq!(options.command, ["sh", "--room", "x"]);
    }

    #[test]
    fn what_is_missing_is_said() {
        assert!(parse(&["--room", "/r"]).is_err_and(|error| error.contains("command")));
        assert!(parse(&["--", "sh"]).is_err_and(|error| error.contains("room")));
    }
}
