"""A C program that changes files by every system call that architectures do differently, as they alone have it."""

import subprocess
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MUST(call) if ((call) < 0) err(1, "%s", #call)
/* The old call where there is one, else what took its place. */
#ifdef SYS_open
#define OPEN(path, flags) syscall(SYS_open, path, flags, 0644)
#define CREAT(path) syscall(SYS_creat, path, 0644)
#define MKDIR(path) syscall(SYS_mkdir, path, 0755)
#define RENAME(from, to) syscall(SYS_rename, from, to)
#define LINK(from, to) syscall(SYS_link, from, to)
#define SYMLINK(to, path) syscall(SYS_symlink, to, path)
#define UNLINK(path) syscall(SYS_unlink, path)
#define RMDIR(path) syscall(SYS_rmdir, path)
#else
#define OPEN(path, flags) openat(AT_FDCWD, path, flags, 0644)
#define CREAT(path) openat(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, 0644)
#define MKDIR(path) mkdirat(AT_FDCWD, path, 0755)
#define RENAME(from, to) renameat(AT_FDCWD, from, AT_FDCWD, to)
#define LINK(from, to) linkat(AT_FDCWD, from, AT_FDCWD, to, 0)
#define SYMLINK(to, path) symlinkat(to, AT_FDCWD, path)
#define UNLINK(path) unlinkat(AT_FDCWD, path, 0)
#define RMDIR(path) unlinkat(AT_FDCWD, path, AT_REMOVEDIR)
#endif

static char block[4096];

int main(int argc, char **argv) {
    MUST(chdir(argv[1]));
    MUST(MKDIR("folder"));
    int file = OPEN("folder/file", O_CREAT | O_RDWR);
    MUST(file);
    struct iovec parts[2] = {{block, 1000}, {block, 3096}};
    MUST(pwrite(file, block, sizeof block, 8192));
    MUST(pwritev(file, parts, 2, 20480));
    MUST(fdatasync(file));
    MUST(writev(file, parts, 2));
    MUST(ftruncate(file, 196608));
    MUST(fsync(file));
    MUST(truncate("folder/file", 163840));
    /* A multiple of every architecture's page. */
    char *mapped = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 65536);
    if (mapped == MAP_FAILED) err(1, "mmap");
    mapped[0] = 'x';
    MUST(msync(mapped, 65536, MS_SYNC));
    int other = CREAT("other");
    MUST(other);
    MUST(write(other, "hello", 5));
    MUST(RENAME("other", "renamed"));
    MUST(LINK("renamed", "linked"));
    MUST(SYMLINK("renamed", "symbolic"));
    MUST(UNLINK("linked"));
    MUST(UNLINK("folder/file"));
    MUST(RMDIR("folder"));
    MUST(fsync(OPEN(".", O_RDONLY | O_DIRECTORY)));
    return 0;
}
"""


def build_program(compiler: str, folder: Path) -> bytes:
    """Compiles it for the architecture of that compiler; it needs no libraries."""
    source, program = folder / "old_calls.c", folder / f"old_calls-{compiler}"
    source.write_text(SOURCE)
    words = [compiler, "-static", "-O1", "-Wall", "-D_FILE_OFFSET_BITS=64", "-o", str(program), str(source)]
    subprocess.run(words, check=True)
    return program.read_bytes()
