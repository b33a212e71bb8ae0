//! The agent: process 1 in a guest, an ordinary child of the controller on the host.
//!
//! | subcommand | what it does |
//! | --- | --- |
//! | `serve` | answers the controller on standard input and output; as process 1 it boots the machine first (`init`) |
//! | `trials` | serves one conversation after another on standard input and output |
//! | `supervise` | ends a hypervisor when its controller exits |
//! | `keep` | removes what a controller has left behind |
//! | `confine`, `traces` | become a hypervisor, with and without confinement |
//! | `sandbox` | mounts a throw-away root, then becomes the program that starts a sandbox on it |
//! | `network` | creates and enters separate networks of machines, configures interfaces and describes them |
//! | `world` | runs a program in namespaces of its own |
//! | `log-writes` | serves an image and logs every write and flush |
//! | `records` | writes records that a power cut must not lose |
//! | `syncs`, `digests`, `follow` | trace what a program does to files and which data it was promised to be durable |
//! | `connect`, `listen`, `relay` | connect a local socket to the standard streams or to a server |
//! | `share` | serves a directory by 9P |
//! | `syscalls` | times single system calls |
//! | `traffic` | measures a network, as either end |
//! | `tsc`, `hypervisor` | print the frequency of the time-stamp counter and the name of the hypervisor |
//!
//! The modules are layered; each uses only modules of its own line and of the lines above it:
//!
//! 1. the kernel: `sys`, `cpuid`, `tsc`, `counters`, `memory`;
//! 2. answers and command lines: `frame`, `failure`, `lock`, `options`, `output`;
//! 3. processes: `reap`, `spawn`, `exec`, `keep`, `supervise`;
//! 4. files: `transfer`, `bulk`, `share`, `logwrites`, `records`;
//! 5. conversations: `channel`, `connect`, `listen`, `calls`, `serve`, `trials`;
//! 6. surroundings: `network`, `confine`, `init`, `world`, `sandbox`, `syncs`, `tree`, `syscalls`, `traffic`.

mod bulk;
mod calls;
mod channel;
mod confine;
mod connect;
mod counters;
mod cpuid;
mod endpoint;
mod exec;
mod failure;
mod frame;
mod init;
mod keep;
mod listen;
mod lock;
mod logwrites;
mod memory;
mod network;
mod options;
mod output;
mod reap;
mod records;
mod renewal;
mod sandbox;
mod serve;
mod share;
mod spawn;
mod supervise;
mod syncs;
mod sys;
mod syscalls;
mod traffic;
mod transfer;
mod tree;
mod trials;
mod tsc;
mod vsock;
mod world;

use std::process::ExitCode;

const USAGE: &str = "usage: guestmark-agent serve [--channel NAME] [--alive SECONDS] [--ahead FD] [--hold FD]... [--remove DIR] [--template]
       guestmark-agent trials --directory DIR [--alive SECONDS]
       guestmark-agent supervise --lifeline FD [--remove PATH]... [--hold FD]... [--grace MS] -- COMMAND [ARGUMENT]...
       guestmark-agent keep --lifeline FD [--controller FD]
       guestmark-agent confine [--writable PATH]... [--temporary DIR] [--over-temporary DIR] [--own-memory] [--own-files]
               [--metadata] [--user UID:GID] [--network] [--sockets] [--serves-files] [--no-io-uring] [--kvm] [--taps] [--vhost] [--packets] [--traces] [--stops FILE]
               [--lifeline FD] [--group DIR]... [--processes N] [--no-thp] -- COMMAND [ARGUMENT]...
       guestmark-agent sandbox --at DIR --complaints FILE --prepared FD --go FD [--group DIR]... [--layer DIR]... [--own-users]
               [--unset NAME]... [--hide DIR]... -- COMMAND [ARGUMENT]...
       guestmark-agent traces [--stops FILE] [--] COMMAND [ARGUMENT]...
       guestmark-agent connect SOCKET
       guestmark-agent listen SOCKET SERVER [ARGUMENT]... -- COMMAND [ARGUMENT]...
       guestmark-agent relay FD
       guestmark-agent share DIRECTORY
       guestmark-agent syscalls --operations N --time NS [NAME]...
       guestmark-agent traffic serve [--address ADDRESS] [--port PORT] [--bare-port PORT]
       guestmark-agent traffic measure ADDRESS PORT BARE-PORT
       guestmark-agent traffic reach ADDRESS PORT MILLISECONDS
       guestmark-agent log-writes --image FILE --log FILE --at FILE [--delay MS]
       guestmark-agent records --method METHOD --tag TAG --first K --count N --size BYTES [--each] PATH
       guestmark-agent syncs --disk DIRECTORY [--most N] [--bytes N] -- COMMAND [ARGUMENT]...
       guestmark-agent digests PATH...
       guestmark-agent follow --disk DIRECTORY --log FILE [--sync-after CALL:PATH]... -- COMMAND [ARGUMENT]...
       guestmark-agent network make [--channel FD] [--own-users] [--second] [--veth NAME NAME | --tap NAME] [--peer ADDRESS/N] [--machine ADDRESS/N]
               [--mtu N] [--queues N] [--offloads on|off] [--headers] [--stays] [--dead-end] [-- COMMAND [ARGUMENT]...]
       guestmark-agent network enter [--users FD] --net FD | --of PID [--as UID:GID] [--close FD]... -- COMMAND [ARGUMENT]...
       guestmark-agent network link --name NAME | --mac MAC | --towards ADDRESS [--address ADDRESS/N] [--mtu N] [--offloads on|off] [--queues N] [--ring N] [--wait MS]
       guestmark-agent network vsock
       guestmark-agent network processes [--net INODE]... [--of PID]... [--tap NAME] [--end PID]... [--joiner PID]... [--except PID]
       guestmark-agent network sink|burst ADDRESS:PORT|vsock:CID:PORT --bytes N [--direct]
       guestmark-agent world --room DIR [--writable DIR] -- COMMAND [ARGUMENT]...
       guestmark-agent tsc
       guestmark-agent hypervisor
       guestmark-agent --version";

fn main() -> ExitCode {
    let began_ns = sys::monotonic_ns();
    let mut arguments = std::env::args_os().skip(1).peekable();
    // As the first process of a container, the agent is told to serve: it has no machine to boot or to power off.
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
        Some("trials") => trials::serve_trials(arguments),
        Some("supervise") => supervise::supervise(arguments),
        Some("confine") => confine::confine(arguments),
        Some("traces") => confine::become_unconfined(arguments),
        Some("sandbox") => sandbox::become_sandbox(arguments),
        Some("keep") => keep::keep(arguments),
        Some("network") => network::run(arguments),
        Some("connect") => connect::connect(arguments),
        Some("listen") => listen::listen(arguments),
        Some("relay") => listen::relay(arguments),
        Some("share") => share::share(arguments),
        Some("syscalls") => syscalls::time_system_calls(arguments),
        Some("traffic") => traffic::run(arguments),
        Some("log-writes") => logwrites::log_writes(arguments),
        Some("records") => records::write_records(arguments),
        Some("syncs") => syncs::trace_syncs(arguments),
        Some("digests") => syncs::print_digests(arguments),
        Some("follow") => syncs::follow(arguments),
        Some("world") => world::run_in_world(arguments),
        Some(syscalls::NOTHING) => return ExitCode::SUCCESS,
        Some("tsc") => {
            if let Some(kilohertz) = tsc::measure_kilohertz() {
                println!("{kilohertz}");
            }
            return ExitCode::SUCCESS;
        }
        Some("hypervisor") => {
            if let Some(name) = cpuid::read_hypervisor_name() {
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
