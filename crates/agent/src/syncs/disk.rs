//! Tracks which data of the files on its disk a program's calls have promised to be durable, and reports it as lines
//! (described at the head of `syncs`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::changes::{Change, Renames};
use super::files::{
    encode_hex, format_hex_list, key, list_files_below, list_links_below, names, read_path_now,
    Blocks, Content, Key, BLOCK,
};

/// Maximum number of files that are followed, each through an open descriptor.
const MOST_FILES: usize = 500;

struct Known {
    id: usize,
    file: File,
    path: Vec<u8>,
    size: u64,
    blocks: Blocks,
}

/// The promised state of a file: the contents of its blocks, and a size.
#[derive(Default)]
struct Safe {
    blocks: Blocks,
    size: u64,
}

/// Blocks of a file that may have changed since the last promise, even if only temporarily; `size` is the smallest size
/// that the file has had.
#[derive(Default)]
struct Touched {
    blocks: BTreeSet<u64>,
    size: u64,
}

pub struct Disk {
    pub root: PathBuf,
    pub digested: u64,
    pub lines: String,
    /// Reasons why data may have been promised to be durable in ways that are not followed.
    pub elsewhere: BTreeSet<&'static str>,
    /// Whether processes continue that may still sync unsynced data.
    pub is_left_open: bool,
    known: HashMap<Key, Known>,
    /// The files when the program began, updated by each promise.
    safe: HashMap<Key, Safe>,
    /// The files and symbolic links by their paths, updated likewise.
    safe_names: HashMap<PathBuf, Key>,
    /// Renames of directories that no promise has covered; the files in them are at their old paths in `safe_names`.
    moved: Vec<Renames>,
    touched: BTreeMap<Key, Touched>,
    /// Files that the program may change at any time without a call.
    mapped: HashSet<Key>,
}

impl Disk {
    pub fn of(root: PathBuf) -> Self {
        let mut disk = Self {
            root,
            digested: 0,
            lines: String::new(),
            elsewhere: BTreeSet::new(),
            is_left_open: false,
            known: HashMap::new(),
            safe: HashMap::new(),
            safe_names: HashMap::new(),
            moved: Vec::new(),
            touched: BTreeMap::new(),
            mapped: HashSet::new(),
        };
        let begin = disk.snapshot();
        disk.safe = begin
            .into_iter()
            .map(|(key, Content { blocks, size, .. })| (key, Safe { blocks, size }))
            .collect();
        let paths = [list_files_below(&disk.root), list_links_below(&disk.root)];
        disk.safe_names = add_keys(paths.into_iter().flatten()).collect();
        disk.digested = 0;
        disk
    }

    pub fn read(&mut self, file: &File) -> io::Result<Content> {
        let content = Content::of(file)?;
        self.digested += content.read;
        Ok(content)
    }

    /// Reads all readable files.
    pub fn snapshot(&mut self) -> HashMap<Key, Content> {
        let paths = list_files_below(&self.root);
        paths
            .iter()
            .filter_map(|path| self.read_content(path))
            .collect()
    }

    fn read_content(&mut self, path: &Path) -> Option<(Key, Content)> {
        let file = File::open(path).ok()?;
        let key = key(&file.metadata().ok()?);
        Some((key, self.read(&file).ok()?))
    }

    /// Returns the content before a write, updated by the blocks that the write replaces: all of them if every change of
    /// the file is seen, otherwise those that it replaces completely.
    pub fn as_written(
        &mut self,
        file: &File,
        mut old: Content,
        written: &Range<u64>,
    ) -> io::Result<Content> {
        let block = BLOCK as u64;
        let now = self.read(file)?;
        let is_seen = !self.mapped.contains(&key(&file.metadata()?));
        let end = written.end.min(now.size);
        for number in written.start / block..end.div_ceil(block) {
            let range = number * block..((number + 1) * block).min(now.size);
            if is_seen || (written.start <= range.start && range.end <= written.end) {
                match now.blocks.get(&number) {
                    Some(digest) => old.blocks.insert(number, *digest),
                    None => old.blocks.remove(&number),
                };
            }
        }
        old.size = old.size.max(end);
        Ok(old)
    }

    /// Reports the current state of a file and which of its bytes are promised. If the content before is known, these
    /// are only the bytes that are the same now and were not changed in between, since a write may be undone. With
    /// `renames` the call also promises the name that an older file has now, which fdatasync does not.
    pub fn report_state(
        &mut self,
        file: File,
        promised: Range<u64>,
        before: Option<(&Content, &[Change])>,
        renames: bool,
    ) -> io::Result<()> {
        let key = key(&file.metadata()?);
        let Content { size, blocks, .. } = self.read(&file)?;
        let changes = before.map_or(&[][..], |(_, changes)| changes);
        let of_file: Vec<&Change> = changes.iter().filter(|one| one.key == key).collect();
        let shortest = of_file.iter().filter(|one| one.shorter);
        let sure_size = shortest
            .map(|one| one.bytes.start)
            .chain(before.map(|(old, _)| old.size))
            .fold(size, u64::min);
        let end = promised.end.min(sure_size).div_ceil(BLOCK as u64);
        let first = (promised.start / BLOCK as u64).min(end);
        let block = BLOCK as u64;
        let sure = |number: u64| {
            let same = before.is_none_or(|(old, _)| old.blocks.get(&number) == blocks.get(&number));
            let range = number * block..(number + 1) * block;
            let overlaps =
                |one: &&Change| one.bytes.start < range.end && range.start < one.bytes.end;
            same && !of_file.iter().any(overlaps)
        };
        let safe = self.safe.entry(key).or_default();
        if promised.is_empty() {
            // Nothing is.
        } else if first == 0 && end == size.div_ceil(block) {
            safe.blocks.retain(|number, _| *number < end);
            safe.size = sure_size;
        } else {
            safe.size = safe.size.max(promised.end.min(sure_size));
        }
        for number in unite_blocks(&safe.blocks, &blocks) {
            if (first..end).contains(&number) && sure(number) {
                match blocks.get(&number) {
                    Some(digest) => safe.blocks.insert(number, *digest),
                    None => safe.blocks.remove(&number),
                };
            }
        }
        let id = self.known.len();
        if id >= MOST_FILES && !self.known.contains_key(&key) {
            self.elsewhere
                .insert("it syncs more files than can be followed");
            return Ok(());
        }
        let known = self.known.entry(key).or_insert_with(|| Known {
            id,
            file,
            path: Vec::new(),
            size: 0,
            blocks: Blocks::new(),
        });
        known.path = read_path_now(&known.file, &self.root);
        // A new file has no other name under which its data could be found.
        if first < end && (renames || !self.safe_names.values().any(|other| *other == key)) {
            self.safe_names
                .insert(crate::sys::as_os_path(&known.path).into(), key);
        }
        let path = encode_hex(&known.path);
        let _ = write!(
            self.lines,
            "file {} {path} {size} {sure_size} {first} {end}",
            known.id
        );
        for number in unite_blocks(&known.blocks, &blocks) {
            let now = blocks.get(&number).copied().unwrap_or(0);
            let mark = if sure(number) { "" } else { "?" };
            if !mark.is_empty() || known.blocks.get(&number).copied().unwrap_or(0) != now {
                let _ = write!(self.lines, " {number}:{now:x}{mark}");
            }
        }
        self.lines.push('\n');
        (known.size, known.blocks) = (size, blocks);
        Ok(())
    }

    /// Notes a change. Changes of files that were never promised are ignored.
    pub fn touch(&mut self, change: &Change) {
        let Some(known) = self.known.get(&change.key) else {
            return;
        };
        let block = BLOCK as u64;
        let touched = self.touched.entry(change.key).or_insert_with(|| Touched {
            size: known.size,
            ..Touched::default()
        });
        let end = change.bytes.end.min(known.size).div_ceil(block);
        touched.blocks.extend(change.bytes.start / block..end);
        if change.shorter {
            touched.size = touched.size.min(change.bytes.start);
        }
    }

    /// Notes a truncation: the dropped data may be missing after a power cut, even if the same bytes are written again.
    pub fn note_truncation(&mut self, key: Key, size: u64) {
        if let Some(safe) = self.safe.get_mut(&key) {
            safe.blocks
                .retain(|number, _| number * (BLOCK as u64) < size);
        }
    }

    /// Notes that the program may change a file at any time from now on.
    pub fn note_mapping(&mut self, key: Key) {
        self.mapped.insert(key);
    }

    /// Reports what may have changed since the last promise.
    pub fn report_changes(&mut self) {
        for key in self.mapped.clone() {
            self.touch(&Change {
                key,
                bytes: 0..u64::MAX,
                shorter: false,
            });
        }
        for (key, Touched { blocks, size }) in std::mem::take(&mut self.touched) {
            if let Some(known) = self.known.get(&key) {
                let _ = write!(self.lines, "touched {} {size}", known.id);
                for number in blocks {
                    let _ = write!(self.lines, " {number}");
                }
                self.lines.push('\n');
            }
        }
    }

    /// Reports renames in progress, two if names are exchanged: until a sync covers them, each file may be found under
    /// either name.
    pub fn report_renames(&mut self, renames: Renames) {
        if let [(old, new)] = &renames[..] {
            if old.symlink_metadata().is_ok() {
                // What had this name is gone, and its number may soon be another file's.
                self.safe_names.remove(new);
            }
        }
        for (old, new) in &renames {
            let [old, new] = [old, new].map(|path| encode_hex(path.as_os_str().as_bytes()));
            let _ = writeln!(self.lines, "renamed {old} {new}");
        }
        if renames.iter().any(|(old, _)| old.is_dir()) {
            self.moved.push(renames);
        }
    }

    /// Notes that the directories that were renamed in or to a directory have their new paths for good.
    fn promise_moves(&mut self, directory: &Path) {
        let (covered, moved): (Vec<_>, Vec<_>) = std::mem::take(&mut self.moved)
            .into_iter()
            .partition(|renames| {
                let mut paths = renames.iter().map(|(_, new)| new);
                paths.any(|new| new == directory || new.parent() == Some(directory))
            });
        self.moved = moved;
        for renames in covered {
            let before = std::mem::take(&mut self.safe_names);
            let moved = before.into_iter().map(|(path, key)| {
                let mut below = renames.iter().filter_map(|(old, new)| {
                    let rest = path.strip_prefix(old).ok()?;
                    (!rest.as_os_str().is_empty()).then(|| new.join(rest))
                });
                (below.next().unwrap_or(path), key)
            });
            self.safe_names = moved.collect();
        }
    }

    /// Reports that the names in a directory are promised: those that it has, and has had since the call `began` if
    /// others may have changed it meanwhile.
    pub fn promise_names(&mut self, path: &Path, began: Option<&[OsString]>) {
        self.promise_moves(path);
        // Read the directory only once: another thread of the program may change it in the meantime.
        if let Ok(names) = names(path) {
            let kept = names
                .iter()
                .filter(|name| began.is_none_or(|began| began.contains(name)));
            self.safe_names
                .extend(add_keys(kept.map(|name| path.join(name))));
            let path = encode_hex(path.as_os_str().as_bytes());
            let _ = writeln!(self.lines, "directory {path} {}", format_hex_list(&names));
        }
    }

    /// Reports that everything below a directory is promised; if `before` is known, only the files in it.
    pub fn promise_tree(
        &mut self,
        directory: &Path,
        before: Option<(&HashMap<Key, Content>, &[Change])>,
    ) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(directory) else {
            return Ok(()); // such as lost+found, which only root may read
        };
        self.promise_names(directory, None);
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.promise_tree(&entry.path(), before)?,
                Ok(kind) if kind.is_file() => {
                    if let Ok(file) = File::open(entry.path()) {
                        let key = key(&file.metadata()?);
                        let old = before.map(|(all, changes)| Some((all.get(&key)?, changes)));
                        let is_new = matches!(old, Some(None));
                        let promised = if is_new { 0..0 } else { 0..u64::MAX };
                        self.report_state(file, promised, old.flatten(), true)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reports files whose paths have changed since they were last reported.
    pub fn report_moves(&mut self) {
        let mut known: Vec<_> = self.known.values_mut().collect();
        known.sort_by_key(|one| one.id);
        for one in known {
            let path = read_path_now(&one.file, &self.root);
            if path != one.path {
                let shown = if path.is_empty() {
                    "-".to_owned()
                } else {
                    encode_hex(&path)
                };
                let _ = writeln!(self.lines, "path {} {shown}", one.id);
                one.path = path;
            }
        }
    }

    /// Reports the final state of all files. If `stopped`, the program was stopped before it could sync everything.
    pub fn finish(&mut self, stopped: bool) -> io::Result<()> {
        self.report_changes();
        self.report_moves();
        let files: Vec<File> = self
            .known
            .values()
            .filter_map(|known| known.file.try_clone().ok())
            .collect();
        for file in files {
            self.report_state(file, 0..0, None, false)?;
        }
        if self.is_left_open {
            return Ok(());
        }
        for (path, bytes) in self.list_unsynced(stopped) {
            let path = encode_hex(path.as_os_str().as_bytes());
            let _ = writeln!(self.lines, "unsynced {bytes} {path}");
        }
        Ok(())
    }

    /// Lists files with data that no call has promised, with the number of such bytes, or 0 if only the name was not
    /// promised, as of a symbolic link. Zeroes are data: those that were written over something, and those at the end of
    /// a file that has grown. For a program that was stopped before it could sync everything, lists only files that it
    /// never synced.
    fn list_unsynced(&mut self, stopped: bool) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        for path in list_files_below(&self.root) {
            let Some((key, content)) = self.read_content(&path) else {
                continue;
            };
            if stopped && self.known.contains_key(&key) {
                continue;
            }
            let none = Safe::default();
            let safe = self.safe.get(&key).unwrap_or(&none);
            let changed: u64 = unite_blocks(&safe.blocks, &content.blocks)
                .into_iter()
                .filter(|number| safe.blocks.get(number) != content.blocks.get(number))
                .map(|number| {
                    let left = content.size.saturating_sub(number * BLOCK as u64);
                    left.min(BLOCK as u64)
                })
                .sum();
            let bytes = changed.max(content.size.saturating_sub(safe.size));
            // An empty file, such as a lock file, contains nothing that could be missing.
            let unnamed = content.size > 0 && self.safe_names.get(&path) != Some(&key);
            if bytes > 0 || unnamed {
                found.push((path, bytes));
            }
        }
        let links = add_keys(list_links_below(&self.root));
        let unnamed = links.filter(|(path, key)| self.safe_names.get(path) != Some(key));
        found.extend(unnamed.map(|(path, _)| (path, 0)));
        found.sort();
        found
    }

    /// Prints the lines so far.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.lines.as_bytes())?;
        out.flush()?;
        self.lines.clear();
        Ok(())
    }
}

/// Pairs each path with the key of its file or symbolic link; other paths are left out.
fn add_keys(paths: impl IntoIterator<Item = PathBuf>) -> impl Iterator<Item = (PathBuf, Key)> {
    paths.into_iter().filter_map(|path| {
        let about = fs::symlink_metadata(&path).ok()?;
        (about.is_file() || about.is_symlink()).then(|| (path, key(&about)))
    })
}

/// Returns the numbers of the blocks that are in either map.
fn unite_blocks(one: &Blocks, other: &Blocks) -> BTreeSet<u64> {
    one.keys().chain(other.keys()).copied().collect()
}
