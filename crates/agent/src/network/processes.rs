//! `guestmark-agent network processes`: lists the processes in a network, with the processor time of each.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use lexopt::{Arg, Parser, ValueExt};

use guestmark_wire::network::NetworkProcess;

use crate::options::to_io_error;

const TUN: &str = "/dev/net/tun";
/// Devices whose kernel threads carry traffic for a process.
const VHOST: [&str; 2] = ["/dev/vhost-net", "/dev/vhost-vsock"];

#[derive(Debug, Default)]
struct Options {
    /// Inode numbers of network namespaces.
    namespaces: HashSet<u64>,
    /// The tap's name; empty for a network without one.
    tap: String,
    ends: Vec<u32>,
    joiners: Vec<u32>,
    /// The calling process, which is left out because it holds what it has created.
    except: u32,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    let mut options = Options::default();
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("tap") => options.tap = parser.value()?.string()?,
            Arg::Long("net") => drop(options.namespaces.insert(parser.value()?.parse()?)),
            Arg::Long("of") => {
                let path = format!("/proc/{}/ns/net", parser.value()?.parse::<u32>()?);
                let inode = fs::metadata(&path)
                    .map_err(|error| format!("{path}: {error}"))?
                    .ino();
                options.namespaces.insert(inode);
            }
            Arg::Long("end") => options.ends.push(parser.value()?.parse()?),
            Arg::Long("joiner") => options.joiners.push(parser.value()?.parse()?),
            Arg::Long("except") => options.except = parser.value()?.parse()?,
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(options)
}

/// Prints every process that is in one of the namespaces, holds the tap, or is meant to carry the traffic.
pub fn list(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let mut options = parse(arguments).map_err(|error| to_io_error(&error))?;
    options.except = match options.except {
        0 => std::process::id(),
        given => given,
    };
    let found = find(&options);
    let encoded = rmp_serde::to_vec_named(&found).map_err(io::Error::other)?;
    io::stdout().write_all(&encoded)?;
    Ok(ExitCode::SUCCESS)
}

fn find(options: &Options) -> Vec<NetworkProcess> {
    let parents = list_parents();
    let (ends, joiners) = (
        add_descendants(&options.ends, &parents),
        add_descendants(&options.joiners, &parents),
    );
    let mut found = Vec::new();
    for &pid in parents.keys() {
        if pid == options.except || pid == std::process::id() {
            continue;
        }
        let in_namespace = fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|entry| options.namespaces.contains(&entry.ino()));
        let holds_tap = !options.tap.is_empty() && holds_tap(pid, &options.tap);
        if !(in_namespace || holds_tap || options.joiners.contains(&pid)) {
            continue;
        }
        // Beside a hypervisor without shared directories, this program serves its guest's root and channel.
        let serves =
            joiners.contains(&pid) && !options.joiners.contains(&pid) && is_this_program(pid);
        found.push(NetworkProcess {
            pid,
            program: read_link(&format!("/proc/{pid}/exe")),
            processors: read_status_line(pid, "Cpus_allowed_list").unwrap_or_default(),
            in_namespace,
            holds_tap,
            is_end: ends.contains(&pid) || serves,
            is_joiner: joiners.contains(&pid) && !serves,
            worked_ns: sum_worked_ns(pid),
            vhost_ns: sum_vhost_ns(pid, &parents),
        });
    }
    found.sort_by_key(|process| process.pid);
    found
}

/// Returns whether a process executes a copy of this program: inside a guest there are several.
fn is_this_program(pid: u32) -> bool {
    let (own, other) = ("/proc/self/exe", format!("/proc/{pid}/exe"));
    let size = |path| fs::metadata(path).map(|entry| entry.len()).ok();
    size(own).is_some_and(|bytes| size(&other) == Some(bytes))
        && fs::read(own).is_ok_and(|program| fs::read(&other).is_ok_and(|there| there == program))
}

/// Returns the parent of each process.
fn list_parents() -> HashMap<u32, u32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(parent) = read_status_line(pid, "PPid").and_then(|text| text.parse().ok()) {
            parents.insert(pid, parent);
        }
    }
    parents
}

fn add_descendants(roots: &[u32], parents: &HashMap<u32, u32>) -> HashSet<u32> {
    let mut found: HashSet<u32> = roots.iter().copied().collect();
    loop {
        let children: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if children.is_empty() {
            return found;
        }
        found.extend(children);
    }
}

fn read_status_line(pid: u32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches(':').trim().to_owned())
}

fn read_link(path: &str) -> String {
    fs::read_link(path)
        .map(|target| target.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Lists names and targets of a process's descriptors.
fn list_open_files(pid: u32) -> impl Iterator<Item = (String, String)> {
    let directory = format!("/proc/{pid}/fd");
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let target = read_link(&entry.path().to_string_lossy());
            (entry.file_name().to_string_lossy().into_owned(), target)
        })
}

fn holds_tap(pid: u32, tap: &str) -> bool {
    list_open_files(pid).any(|(number, target)| {
        target == TUN
            && fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"))
                .unwrap_or_default()
                .lines()
                .any(|line| line.split_whitespace().eq(["iff:", tap]))
    })
}

fn list_threads(pid: u32) -> Vec<String> {
    let directory = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    entries
        .map(|entry| format!("{directory}/{}", entry.file_name().to_string_lossy()))
        .collect()
}

fn read_thread_ns(thread: &str) -> u64 {
    let text = fs::read_to_string(format!("{thread}/schedstat")).unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn sum_worked_ns(pid: u32) -> u64 {
    list_threads(pid)
        .iter()
        .map(|thread| read_thread_ns(thread))
        .sum()
}

/// Returns the processor time of the kernel's threads that carry traffic for a process; `None` if it has none.
///
/// Before Linux 6.4 they are kernel threads; since then they are threads of the process.
fn sum_vhost_ns(pid: u32, parents: &HashMap<u32, u32>) -> Option<u64> {
    if !list_open_files(pid).any(|(_, target)| VHOST.contains(&target.as_str())) {
        return None;
    }
    let name = format!("vhost-{pid}");
    let kernel = parents.keys().map(|other| format!("/proc/{other}"));
    let threads = list_threads(pid).into_iter().chain(kernel);
    let mut found = None;
    for thread in threads {
        let said = fs::read_to_string(format!("{thread}/comm")).unwrap_or_default();
        if said.trim() == name {
            found = Some(found.unwrap_or(0) + read_thread_ns(&thread));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::{add_descendants, find, is_this_program, Options};

    #[test]
    fn descendants_of_descendants_belong_to_the_roots() {
        let parents = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 1)]);
        let found = add_descendants(&[2], &parents);
        assert_eq!(found, [2, 3, 4].into());
    }

    #[test]
    fn this_program_is_known_by_its_content() {
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let found = [std::process::id(), other.id()].map(is_this_program);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(found, [true, false]);
    }

    #[test]
    fn a_process_in_the_namespace_is_found_with_its_time() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let inode = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let options = Options {
            namespaces: [inode].into(),
            joiners: vec![child.id()],
            ..Options::default()
        };
        let found = find(&options);
        child.kill().unwrap();
        child.wait().unwrap();
        let process = found.iter().find(|process| process.pid == child.id());
        let process = process.expect("the child is in this namespace");
        assert!(process.in_namespace && process.is_joiner && !process.is_end);
        assert_eq!((process.holds_tap, process.vhost_ns), (false, None));
        assert!(!process.processors.is_empty());
        assert!(found.iter().all(|other| other.pid != std::process::id()));
    }
}
