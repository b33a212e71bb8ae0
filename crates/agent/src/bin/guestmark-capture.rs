//! `guestmark-capture`: the command behind `guestmark capture`. It is built here because a wheel carries the programs
//! of one package.

use std::process::ExitCode;

fn main() -> ExitCode {
    guestmark_capture::command::main()
}
