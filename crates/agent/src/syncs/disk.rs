//! What a program's calls have promised of the files on its disk, as lines; see the head of `syncs`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::changes::Change;
use super::files::{
    format_hex_list, hex, key, list_files_below, names, read_path_now, Blocks, Content, Key, BLOCK,
};

/// Files that are followed at a time, each by an open descriptor.
const MOST_FILES: usize = 500;

struct Known {
    id: usize,
    file: File,
    path: Vec<u8>,
    size: u64,
    blocks: Blocks,
}

/// What may have changed in a file since the last promise, if only for a while; `size` is its smallest.
#[derive(Default)]
struct Touched {
    blocks: BTreeSet<u64>,
    size: u64,
}

pub struct Disk {
    pub root: PathBuf,
    pub digested: u64,
    pub lines: String,
    /// Why data may have been promised in ways that are not followed.
    pub elsewhere: BTreeSet<&'static str>,
    /// Whether processes go on that may still sync what nobody has synced so far.
    pub is_left_open: bool,
    known: HashMap<Key, Known>,
    /// What was on the disk when the program began, and what has been promised since.
    safe: HashMap<Key, Blocks>,
    /// The files' names, likewise.
    safe_names: HashMap<PathBuf, Key>,
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
            touched: BTreeMap::new(),
            mapped: HashSet::new(),
        };
        let begin = disk.snapshot();
        disk.safe = begin
            .into_iter()
            .map(|(key, content)| (key, content.blocks))
            .collect();
        disk.safe_names = add_keys(list_files_below(&disk.root)).collect();
        disk.digested = 0;
        disk
    }

    pub fn read(&mut self, file: &File) -> io::Result<Content> {
        let content = Content::of(file)?;
        self.digested += content.read;
        Ok(content)
    }

    /// All files that may be read.
    pub fn snapshot(&mut self) -> HashMap<Key, Content> {
        let paths = list_files_below(&self.root);
        paths.iter().filter_map(|path| self.content(path)).collect()
    }

    fn content(&mut self, path: &Path) -> Option<(Key, Content)> {
        let file = File::open(path).ok()?;
        let key = key(&file.metadata().ok()?);
        Some((key, self.read(&file).ok()?))
    }

    /// What was there before a write, with what it has written itself: the blocks that it has written whole.
    pub fn as_written(
        &mut self,
        file: &File,
        mut old: Content,
        written: &Range<u64>,
    ) -> io::Result<Content> {
        let block = BLOCK as u64;
        let now = self.read(file)?;
        for number in written.start.div_ceil(block)..written.end.min(now.size).div_ceil(block) {
            if ((number + 1) * block).min(now.size) <= written.end {
                match now.blocks.get(&number) {
                    Some(digest) => old.blocks.insert(number, *digest),
                    None => old.blocks.remove(&number),
                };
            }
        }
        old.size = old.size.max(written.end.min(now.size));
        Ok(old)
    }

    /// Says how a file is now, and which bytes of it are promised: of what was there before, where that is known,
    /// what is the same now and was not changed in between, as what is written may be undone again.
    pub fn observe(
        &mut self,
        file: File,
        promised: Range<u64>,
        before: Option<(&Content, &[Change])>,
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
        if first == 0 && end == size.div_ceil(BLOCK as u64) {
            safe.retain(|number, _| *number < end);
        }
        for number in unite_blocks(safe, &blocks) {
            if (first..end).contains(&number) && sure(number) {
                match blocks.get(&number) {
                    Some(digest) => safe.insert(number, *digest),
                    None => safe.remove(&number),
                };
            }
        }
        let id = self.known.len();
        if id >= MOST_FILES && !self.known.contains_key(&key) {
            self.elsewhere
                .insert("it syncs more files than are followed");
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
        if first < end {
            // Whoever finds the data finds it by the name that the file has now.
            self.safe_names
                .insert(crate::sys::os_path(&known.path).into(), key);
        }
        let path = hex(&known.path);
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

    /// Of files that were never promised nothing is kept.
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

    /// A file was made so short: what it lost may be lost after a cut of the power, even if the same is written again.
    pub fn shorten(&mut self, key: Key, size: u64) {
        if let Some(safe) = self.safe.get_mut(&key) {
            safe.retain(|number, _| number * (BLOCK as u64) < size);
        }
    }

    /// A file that the program may change at any time from now on.
    pub fn map(&mut self, key: Key) {
        self.mapped.insert(key);
    }

    /// Says what may have changed since the last promise.
    pub fn changes(&mut self) {
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

    /// Says that something is being renamed: until a sync covers that, it may be found under either name.
    pub fn rename(&mut self, old: &Path, new: &Path) {
        let [old, new] = [old, new].map(|path| hex(path.as_os_str().as_bytes()));
        let _ = writeln!(self.lines, "renamed {old} {new}");
    }

    /// Promises the names in a directory.
    pub fn list(&mut self, path: &Path) {
        // Read once: another thread of the program may change it meanwhile.
        if let Ok(names) = names(path) {
            self.safe_names
                .extend(add_keys(names.iter().map(|name| path.join(name))));
            let path = hex(path.as_os_str().as_bytes());
            let _ = writeln!(self.lines, "directory {path} {}", format_hex_list(&names));
        }
    }

    /// Promises everything below a directory; of what is not in `before`, if that is known, nothing.
    pub fn walk(
        &mut self,
        directory: &Path,
        before: Option<(&HashMap<Key, Content>, &[Change])>,
    ) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(directory) else {
            return Ok(()); // such as lost+found, which is the superuser's
        };
        self.list(directory);
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.walk(&entry.path(), before)?,
                Ok(kind) if kind.is_file() => {
                    if let Ok(file) = File::open(entry.path()) {
                        let key = key(&file.metadata()?);
                        let old = before.map(|(all, changes)| Some((all.get(&key)?, changes)));
                        let is_new = matches!(old, Some(None));
                        let promised = if is_new { 0..0 } else { 0..u64::MAX };
                        self.observe(file, promised, old.flatten())?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Says which files have other paths than when they were last seen.
    pub fn moved(&mut self) {
        let mut known: Vec<_> = self.known.values_mut().collect();
        known.sort_by_key(|one| one.id);
        for one in known {
            let path = read_path_now(&one.file, &self.root);
            if path != one.path {
                let shown = if path.is_empty() {
                    "-".to_owned()
                } else {
                    hex(&path)
                };
                let _ = writeln!(self.lines, "path {} {shown}", one.id);
                one.path = path;
            }
        }
    }

    /// Says how all files are in the end; `stopped`: the program was, before it could sync all.
    pub fn finish(&mut self, stopped: bool) -> io::Result<()> {
        self.changes();
        self.moved();
        let files: Vec<File> = self
            .known
            .values()
            .filter_map(|known| known.file.try_clone().ok())
            .collect();
        for file in files {
            self.observe(file, 0..0, None)?;
        }
        if self.is_left_open {
            return Ok(());
        }
        for (path, bytes) in self.list_unsynced(stopped) {
            let path = hex(path.as_os_str().as_bytes());
            let _ = writeln!(self.lines, "unsynced {bytes} {path}");
        }
        Ok(())
    }

    /// Files with data that no call has promised, in bytes, or with a name that none has: 0. Of a program that was
    /// stopped before it could sync them, only those that it has never synced.
    fn list_unsynced(&mut self, stopped: bool) -> Vec<(PathBuf, u64)> {
        let mut paths = list_files_below(&self.root);
        paths.sort();
        let mut found = Vec::new();
        for path in paths {
            let Some((key, content)) = self.content(&path) else {
                continue;
            };
            if stopped && self.known.contains_key(&key) {
                continue;
            }
            let safe = self.safe.get(&key);
            let bytes: u64 = content
                .blocks
                .iter()
                .filter(|(number, digest)| safe.and_then(|safe| safe.get(number)) != Some(digest))
                .map(|(number, _)| (content.size - number * BLOCK as u64).min(BLOCK as u64))
                .sum();
            // An empty file, such as one that is only locked, holds nothing that could be missing.
            let unnamed = content.size > 0 && self.safe_names.get(&path) != Some(&key);
            if bytes > 0 || unnamed {
                found.push((path, bytes));
            }
        }
        found
    }

    pub fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.lines.as_bytes())?;
        out.flush()?;
        self.lines.clear();
        Ok(())
    }
}

/// Paths with the files that they lead to; those of no file are left out.
fn add_keys(paths: impl IntoIterator<Item = PathBuf>) -> impl Iterator<Item = (PathBuf, Key)> {
    paths.into_iter().filter_map(|path| {
        let about = fs::symlink_metadata(&path).ok()?;
        about.is_file().then(|| (path, key(&about)))
    })
}

/// The numbers of the blocks that are in one or the other.
fn unite_blocks(one: &Blocks, other: &Blocks) -> BTreeSet<u64> {
    one.keys().chain(other.keys()).copied().collect()
}
