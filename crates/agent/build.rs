//! Builds the library that `src/confine/registers.rs` preloads; it is empty for targets without User-Mode Linux.

use std::env;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "preload/registers.rs";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let library = Path::new(&variable("OUT_DIR")).join("registers.so");
    let target = variable("TARGET");
    if target != "x86_64-unknown-linux-gnu" {
        std::fs::write(&library, []).expect("the output directory can be written to");
        return;
    }
    let status = Command::new(variable("RUSTC"))
        .args([
            "--edition=2021",
            "--crate-type=cdylib",
            "--crate-name=registers",
            "--target",
            &target,
        ])
        .args([
            "-Copt-level=s",
            "-Cpanic=abort",
            "-Cstrip=symbols",
            "-Clink-arg=-nostdlib",
            "-o",
        ])
        .args([library.as_path(), Path::new(SOURCE)])
        .status()
        .expect("rustc can be run");
    assert!(status.success(), "rustc could not compile {SOURCE}");
}
