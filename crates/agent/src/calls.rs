//! Answers the calls that need no thread and no further messages.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};

use guestmark_wire::{
    Answer, Call, Clock, Done, Facts, Failed, Failure, Hello, Kind, Lookup, Phase, Stat, Statfs,
    Tree, Which, PROTOCOL,
};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::time::ClockId;
use serde::Serialize;

use crate::failure::{failure, os_failure};
use crate::frame::Outbox;
use crate::{lock, memory, spawn, sys, tree};

/// Answers a call that neither runs a program nor transfers much data.
pub fn answer(id: u64, call: Call<'_>, out: &mut Outbox) {
    match call {
        Call::Which(lookup) => reply(id, find_command(&lookup), out),
        Call::Tree(path) => {
            let result = tree::digest(std::path::Path::new(OsStr::from_bytes(&path.path)));
            let result = result
                .map(|digest| Tree {
                    xxh3: digest.to_be_bytes().to_vec().into(),
                })
                .map_err(|error| os_failure(&String::from_utf8_lossy(&path.path), &error));
            reply(id, result, out);
        }
        Call::Mount(mount) => {
            let result = self::mount(&mount.source, &mount.target, &mount.fstype, &mount.options);
            reply(id, done("mount", &mount.target, result), out);
        }
        Call::Umount(umount) => {
            let flags = if umount.lazy {
                UnmountFlags::DETACH
            } else {
                UnmountFlags::empty()
            };
            let result = sys::make_cstring(&umount.target)
                .and_then(|target| Ok(rustix::mount::unmount(target, flags)?));
            reply(id, done("umount", &umount.target, result), out);
        }
        Call::Sync => {
            rustix::fs::sync();
            reply(id, Ok(Done {}), out);
        }
        Call::Stat(path) => reply(id, stat(&path.path), out),
        Call::Statfs(path) => reply(id, statfs(&path.path), out),
        Call::Mkdir(mkdir) => {
            let mut builder = fs::DirBuilder::new();
            let result = builder
                .recursive(mkdir.parents)
                .mode(mkdir.mode)
                .create(OsStr::from_bytes(&mkdir.path));
            reply(id, done("mkdir", &mkdir.path, result), out);
        }
        Call::Remove(remove) => {
            let path = OsStr::from_bytes(&remove.path);
            let result = match fs::symlink_metadata(path) {
                Ok(data) if data.is_dir() && remove.recursive => fs::remove_dir_all(path),
                Ok(data) if data.is_dir() => fs::remove_dir(path),
                Ok(_) => fs::remove_file(path),
                Err(error) => Err(error),
            };
            reply(id, done("remove", &remove.path, result), out);
        }
        Call::Facts => reply(id, Ok(collect_facts()), out),
        Call::Lock(lock) => reply(id, lock::take(&lock.holder), out),
        Call::Touch(touch) => {
            let result = memory::touch(touch.bytes);
            reply(
                id,
                result.map_err(|error| os_failure("memory", &error)),
                out,
            );
        }
        Call::Fork(touch) => {
            let result = memory::touch_in_child(touch.bytes);
            reply(id, result.map_err(|error| os_failure("fork", &error)), out);
        }
        _ => reply::<Done>(
            id,
            Err(failure(
                Kind::BadRequest,
                "this message belongs to a running call",
            )),
            out,
        ),
    }
}

fn reply<T: Serialize>(id: u64, result: Result<T, Failure>, out: &mut Outbox) {
    match result {
        Ok(ok) => out.push(&Answer { id, ok }),
        Err(error) => out.push(&Failed { id, error }),
    }
}

fn done(what: &str, path: &[u8], result: io::Result<()>) -> Result<Done, Failure> {
    let name = String::from_utf8_lossy(path);
    result
        .map(|()| Done {})
        .map_err(|error| os_failure(&format!("{what} {name}"), &error))
}

/// Reads the clocks.
pub fn read_clocks() -> Clock {
    Clock {
        monotonic_ns: sys::monotonic_ns(),
        realtime_ns: sys::clock_ns(ClockId::Realtime),
        boottime_ns: sys::clock_ns(ClockId::Boottime),
    }
}

fn read_trimmed(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Describes this agent.
pub fn describe_agent(phases: &[Phase], window: Option<u32>) -> Hello {
    let name = rustix::system::uname();
    Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        arch: name.machine().to_string_lossy().into_owned(),
        kernel: name.release().to_string_lossy().into_owned(),
        pid: std::process::id(),
        uid: rustix::process::getuid().as_raw(),
        hostname: name.nodename().to_string_lossy().into_owned(),
        boot_id: read_trimmed("/proc/sys/kernel/random/boot_id"),
        clock: read_clocks(),
        window,
        phases: phases.to_vec(),
    }
}

fn find_command(lookup: &Lookup) -> Result<Which, Failure> {
    let cwd = match &lookup.cwd {
        Some(cwd) => cwd.to_vec(),
        None => std::env::current_dir()
            .map(|cwd| cwd.as_os_str().as_bytes().to_vec())
            .unwrap_or_default(),
    };
    let name = String::from_utf8_lossy(&lookup.name);
    let mut denied = false;
    for file in spawn::list_candidates(
        &lookup.name,
        lookup.path.as_ref().map(|path| path.as_slice()),
        Some(&cwd),
    ) {
        let path = spawn::resolve_within(Some(&cwd), &file);
        match fs::metadata(OsStr::from_bytes(&path)) {
            Ok(data) if data.is_file() && data.permissions().mode() & 0o111 != 0 => {
                return Ok(Which { path: path.into() });
            }
            Ok(_) => denied = true,
            Err(error) => denied |= error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
    Err(if denied {
        failure(
            Kind::PermissionDenied,
            &format!("{name}: permission denied"),
        )
    } else {
        failure(Kind::NotFound, &format!("{name}: command not found"))
    })
}

fn stat(path: &[u8]) -> Result<Stat, Failure> {
    let data = fs::metadata(OsStr::from_bytes(path))
        .map_err(|error| os_failure(&String::from_utf8_lossy(path), &error))?;
    Ok(Stat {
        mode: data.mode(),
        uid: data.uid(),
        gid: data.gid(),
        size: data.size(),
        blocks: data.blocks(),
        mtime_ns: data.mtime() * 1_000_000_000 + data.mtime_nsec(),
    })
}

fn statfs(path: &[u8]) -> Result<Statfs, Failure> {
    let data = rustix::fs::statfs(OsStr::from_bytes(path))
        .map_err(|error| os_failure(&String::from_utf8_lossy(path), &error.into()))?;
    Ok(Statfs {
        magic: data.f_type as u64,
        block_size: data.f_bsize as u64,
        blocks: data.f_blocks,
        free: data.f_bfree,
        available: data.f_bavail,
    })
}

/// Mounts as `mount -t FSTYPE -o OPTIONS SOURCE TARGET` would.
pub fn mount(source: &[u8], target: &[u8], fstype: &str, options: &str) -> io::Result<()> {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        flags |= match option {
            "ro" => MountFlags::RDONLY,
            "sync" => MountFlags::SYNCHRONOUS,
            "dirsync" => MountFlags::DIRSYNC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "relatime" => MountFlags::RELATIME,
            "strictatime" => MountFlags::STRICTATIME,
            "lazytime" => MountFlags::LAZYTIME,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "nosuid" => MountFlags::NOSUID,
            "bind" => MountFlags::BIND,
            "rbind" => MountFlags::BIND | MountFlags::REC,
            "remount" => {
                data.clear();
                return remount(target, options);
            }
            "rw" | "defaults" | "async" | "atime" | "dev" | "exec" | "suid" => MountFlags::empty(),
            other => {
                data.push(other);
                MountFlags::empty()
            }
        };
    }
    let data = sys::make_cstring(data.join(",").as_bytes())?;
    rustix::mount::mount(
        sys::make_cstring(source)?,
        sys::make_cstring(target)?,
        fstype,
        flags,
        data.as_c_str(),
    )?;
    Ok(())
}

fn remount(target: &[u8], options: &str) -> io::Result<()> {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "remount" | "rw" => {}
            "ro" => flags |= MountFlags::RDONLY,
            "sync" => flags |= MountFlags::SYNCHRONOUS,
            "noatime" => flags |= MountFlags::NOATIME,
            other => data.push(other),
        }
    }
    let data = sys::make_cstring(data.join(",").as_bytes())?;
    Ok(rustix::mount::mount_remount(
        sys::make_cstring(target)?,
        flags,
        data.as_c_str(),
    )?)
}

fn collect_facts() -> Facts {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of_cpu = |names: &[&str]| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(name, _)| names.contains(&name.trim()))
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    };
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mem_total = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .split_ascii_whitespace()
            .next()
    });
    let maker = read_trimmed("/sys/hypervisor/type");
    Facts {
        cpu_model: match of_cpu(&["model name", "cpu", "cpu model", "uarch", "Processor"]) {
            // The arm64 kernel reports only numbers.
            unnamed if unnamed.is_empty() => match of_cpu(&["CPU implementer"]) {
                by if by.is_empty() => by,
                by => format!("implementer {by}, part {}", of_cpu(&["CPU part"])),
            },
            model => model,
        },
        cpu_flags: of_cpu(&["flags", "Features", "isa"])
            .split_ascii_whitespace()
            .map(str::to_owned)
            .collect(),
        cpus_online: count_online(&read_trimmed("/sys/devices/system/cpu/online")),
        mem_total_kib: mem_total
            .and_then(|number| number.parse().ok())
            .unwrap_or(0),
        cmdline: read_trimmed("/proc/cmdline"),
        mounts: fs::read_to_string("/proc/self/mounts").unwrap_or_default(),
        clocksource: read_trimmed(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        hypervisor: if maker.is_empty() {
            read_trimmed("/sys/class/dmi/id/sys_vendor")
        } else {
            maker
        },
    }
}

/// Counts the processors in a list such as `0-2,4`. If there is no list (no `/sys`, or a single processor), returns the
/// number that the C library finds.
fn count_online(ranges: &str) -> u32 {
    let size = |range: &str| match range.split_once('-') {
        Some((from, to)) => Some(to.parse::<u32>().ok()?.checked_sub(from.parse().ok()?)? + 1),
        None => range.parse::<u32>().ok().map(|_| 1),
    };
    match ranges.split(',').filter_map(size).sum::<u32>() {
        0 => sys::count_processors(),
        listed => listed,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(super::count_online("0-2,4"), 4);
        assert_eq!(super::count_online("0"), 1);
        let there = std::thread::available_parallelism().unwrap().get() as u32;
        assert!(super::count_online("") >= there);
        assert!(super::count_online("3-1") >= there);
    }
}
