//! The program `guestmark-capture`, for its distribution of its own: see `pyproject.toml` beside `src`.

use std::process::ExitCode;

fn main() -> ExitCode {
    guestmark_capture::command::main()
}
