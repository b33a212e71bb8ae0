"""Fuzzing: of Rust in `fuzz_targets`, of Python in `targets`."""
