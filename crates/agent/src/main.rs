//! The agent: PID 1 in a guest, a plain child of the controller on the host.
//!
//! `guestmark-agent serve` answers on standard input and output; as PID 1 without a word it boots first (see `init`);
//! `guestmark-agent trials` lets one conversation after the other have the standard input and output;
//! `guestmark-agent supervise` keeps a hypervisor from outliving its controller;
//! `guestmark-agent keep` removes what a controller has left;
//! `guestmark-agent confine` becomes a hypervisor that can change nothing of the host;
//! `guestmark-agent sandbox` makes a root that is thrown away, then becomes what starts a sandbox on it;
//! `guestmark-agent log-writes` serves an image and logs each write and flush of it;
//! `guestmark-agent records` writes what a power cut must not lose;
//! `guestmark-agent syncs` stops a program after each call that promises durability;
//! `guestmark-agent follow` writes down what a program does to files;
//! `guestmark-agent world` runs a program in a world of its own; `guestmark-agent tree` tells file trees apart;
//! `guestmark-agent connect` is a connection to a local socket for whoever talks through its standard streams;
//! `guestmark-agent listen` has a server take a connection beside a command; `guestmark-agent relay` is such a server;
//! `guestmark-agent share` serves a directory by 9p.

mod bulk;
mod calls;
mod confine;
mod connect;
mod counters;
mod cpuid;
mod exec;
mod failure;
mod frame;
mod init;
mod keep;
mod listen;
mod lock;
mod logwrites;
mod memory;
mod output;
mod reap;
mod records;
mod sandbox;
mod serve;
mod share;
mod spawn;
mod supervise;
mod syncs;
mod sys;
mod syscalls;
mod transfer;
mod tree;
mod trials;
mod tsc;
mod world;

use std::process::ExitCode;

const USAGE: &str = "usage: guestmark-agent serve [--alive SECONDS] [--ahead FD] [--hold FD]... [--remove DIR]
       guestmark-agent trials --directory DIR [--alive SECONDS]
       guestmark-agent supervise --lifeline FD [--remove PATH]... [--hold FD]... [--grace MS] -- COMMAND [ARGUMENT]...
       guestmark-agent keep --lifeline FD [--controller FD]
       guestmark-agent confine [--writable PATH]... [--temporary DIR] [--over-temporary DIR] [--own-memory] [--own-files]
               [--metadata] [--user UID:GID] [--network] [--sockets] [--serves-files] [--no-io-uring] [--kvm] [--traces] [--stops FILE]
               [--lifeline FD] [--group DIR]... [--processes N] [--no-thp] -- COMMAND [ARGUMENT]...
       guestmark-agent sandbox --at DIR --complaints FILE --prepared FD --go FD [--group DIR]... [--layer DIR]... [--own-users]
               [--unset NAME]... -- COMMAND [ARGUMENT]...
       guestmark-agent traces [--stops FILE] [--] COMMAND [ARGUMENT]...
       guestmark-agent connect SOCKET
       guestmark-agent listen SOCKET SERVER [ARGUMENT]... -- COMMAND [ARGUMENT]...
       guestmark-agent relay FD
       guestmark-agent share DIRECTORY
       guestmark-agent syscalls --operations N --time NS [NAME]...
       guestmark-agent log-writes --image FILE --log FILE --at FILE [--delay MS]
       guestmark-agent records --method METHOD --tag TAG --first K --count N --size BYTES [--each] PATH
       guestmark-agent syncs --disk DIRECTORY [--most N] [--bytes N] -- COMMAND [ARGUMENT]...
       guestmark-agent digests PATH...
       guestmark-agent follow --disk DIRECTORY --log FILE [--sync-after CALL:PATH]... -- COMMAND [ARGUMENT]...
       guestmark-agent tree DIRECTORY
       guestmark-agent world --room DIR [--writable DIR] -- COMMAND [ARGUMENT]...
       guestmark-agent tsc
       guestmark-agent hypervisor
       guestmark-agent --version";

fn main() -> ExitCode {
    let began_ns = sys::monotonic_ns();
    let mut arguments = std::env::args_os().skip(1).peekable();
    // The first process of a container is asked to serve: it has no machine to make ready, nor to switch off.
    let asked_to_serve = arguments.peek().is_some_and(|word| word == "serve");
    if std::process::id() == 1 && !asked_to_serve {
        init::run();
    }
    let result = match arguments
        .next()
        .as_deref()
        .and_then(std::ffi::OsStr::to_str)
    {
        Some("serve") => serve::serve_stdio(arguments, began_ns),
        Some("trials") => trials::trials(arguments),
        Some("supervise") => supervise::supervise(arguments),
        Some("confine") => confine::confine(arguments),
        Some("traces") => confine::trace(arguments),
        Some("sandbox") => sandbox::sandbox(arguments),
        Some("keep") => keep::keep(arguments),
        Some("connect") => connect::connect(arguments),
        Some("listen") => listen::listen(arguments),
        Some("relay") => listen::relay(arguments),
        Some("share") => share::share(arguments),
        Some("syscalls") => syscalls::syscalls(arguments),
        Some("log-writes") => logwrites::log_writes(arguments),
        Some("records") => records::records(arguments),
        Some("syncs") => syncs::syncs(arguments),
        Some("digests") => syncs::digests(arguments),
        Some("follow") => syncs::follow(arguments),
        Some("tree") => tree::tree(arguments),
        Some("world") => world::world(arguments),
        Some(syscalls::NOTHING) => return ExitCode::SUCCESS,
        Some("tsc") => {
            if let Some(kilohertz) = tsc::kilohertz() {
                println!("{kilohertz}");
            }
            return ExitCode::SUCCESS;
        }
        Some("hypervisor") => {
            if let Some(name) = cpuid::hypervisor() {
                println!("{name}");
            }
            return ExitCode::SUCCESS;
        }
        Some("--version") => {
            println!(
                "guestmark-agent {} protocol {}",
                env!("CARGO_PKG_VERSION"),
                guestmark_wire::PROTOCOL
            );
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(125);
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("guestmark-agent: {error}");
        ExitCode::from(125)
    })
}
