//! The modules of `src` are layers: each one uses only itself and those before it. A test of all crates
//! (`tests/unit/project/test_rust_modules.py`) checks that files do not use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const LAYERS: [&str; 8] = [
    "wire",
    "connection",
    "evidence",
    "cause",
    "application",
    "results",
    "engine",
    "report",
];

/// The files of one layer by name, with the `layer::file` pairs that each of them names after `crate::`.
fn uses_of(layer: &str) -> BTreeMap<String, BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src")
        .join(layer);
    let files = fs::read_dir(folder).expect("a folder for each layer");
    files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.file_stem() != Some("mod".as_ref()))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy();
            let text = fs::read_to_string(&path).expect("Rust source");
            // Links in comments may refer to any module.
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let used = code
                .flat_map(|line| line.split("crate::").skip(1))
                .map(|rest| {
                    let end = |c: char| !c.is_alphanumeric() && c != '_';
                    let mut words = rest.split(end).filter(|word| !word.is_empty());
                    let layer = words.next().unwrap_or("");
                    format!("{layer}::{}", words.next().unwrap_or(""))
                });
            (format!("{layer}::{name}"), used.collect())
        })
        .collect()
}

#[test]
fn modules_use_only_their_own_layer_and_those_before() {
    for (height, layer) in LAYERS.iter().enumerate() {
        let files = uses_of(layer);
        assert!(!files.is_empty(), "{layer} has no files");
        for (file, used) in &files {
            for other in used {
                let other_layer = other.split("::").next().unwrap_or("");
                let reached = LAYERS.iter().position(|&name| name == other_layer);
                assert!(
                    reached.is_some_and(|reached| reached <= height),
                    "{file} uses {other}, which is above it"
                );
            }
        }
    }
}
