//! Replaces `ptrace` for User-Mode Linux, preloaded by `confine/registers.rs`: counts stops and supports newer
//! processors.
//!
//! The kernel of User-Mode Linux resumes a process of its guest by `ptrace` and waits until that process stops again,
//! so each such request is one stop, whatever the scheduler does meanwhile. The count is kept in a file of 8 bytes in
//! the machine's byte order, whose open descriptor is in `GUESTMARK_STOPS`.
//!
//! Kernels of User-Mode Linux before 6.13 keep 2,696 bytes of a process's extended state (AVX-512 and protection keys).
//! Linux accepts only the whole state (`xstateregs_set`, arch/x86/kernel/fpu/regset.c), so on a processor with AMX,
//! whose state has 11,008 bytes, the guest's first process dies. Here the missing end is filled with zeroes. The header
//! in front of it says which parts are in use, and those are not: they are in their initial state, as they are in any
//! process that has not asked the kernel for AMX.
//!
//! `build.rs` compiles it to a library without Rust's runtime.

#![no_std]

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const PTRACE: c_long = 101;
const PEEK: core::ops::RangeInclusive<c_long> = 1..=3; // whose values glibc returns
const RESUME: [c_long; 5] = [7, 9, 24, 31, 32]; // CONT, SINGLESTEP, SYSCALL, SYSEMU, SYSEMU_SINGLESTEP
const GETREGSET: c_long = 0x4204;
const SETREGSET: c_long = 0x4205;
const NT_X86_XSTATE: c_long = 0x202;
const EFAULT: c_long = 14;
const LARGEST: usize = 64 << 10;

#[repr(C)]
struct Iovec {
    base: *mut c_void,
    len: usize,
}

#[repr(align(64))]
struct State {
    bytes: UnsafeCell<[u8; LARGEST]>,
    size: UnsafeCell<usize>, // of the whole state; 0 until a shorter one was refused
}

// SAFETY: one thread of User-Mode Linux traces, and it does so with its guest's scheduler held off.
unsafe impl Sync for State {}

static STATE: State = State {
    bytes: UnsafeCell::new([0; LARGEST]),
    size: UnsafeCell::new(0),
};

static UNSEEN: AtomicU64 = AtomicU64::new(0); // receives the count if there is no file
static STOPS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
const READ_WRITE: c_int = 3;
const SHARED: c_int = 1;

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn atoi(text: *const c_char) -> c_int;
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
    fn memcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
    fn memset(to: *mut c_void, byte: c_int, count: usize) -> *mut c_void;
}

/// Calls `ptrace(2)` in the kernel; returns a negative error number on failure.
unsafe fn call(request: c_long, pid: c_long, address: c_long, data: *mut c_void) -> c_long {
    let result;
    // SAFETY: the caller's arguments are those of the system call, which changes no other register.
    unsafe {
        asm!("syscall", inlateout("rax") PTRACE => result, in("rdi") request, in("rsi") pid, in("rdx") address,
             in("r10") data, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Like [`call`], but passes the whole state if the kernel refuses a shorter one.
unsafe fn set_state(pid: c_long, data: *mut c_void) -> c_long {
    let (bytes, size) = (STATE.bytes.get().cast::<c_void>(), STATE.size.get());
    // SAFETY: `data` is the caller's `iovec`, as the request wants it; the buffer is used by one thread (see `State`).
    unsafe {
        let given = data.cast::<Iovec>().read();
        if *size == 0 {
            let result = call(SETREGSET, pid, NT_X86_XSTATE, data);
            if result != -EFAULT {
                return result;
            }
            let mut whole = Iovec {
                base: bytes,
                len: LARGEST,
            };
            if call(
                GETREGSET,
                pid,
                NT_X86_XSTATE,
                ptr::from_mut(&mut whole).cast(),
            ) < 0
                || whole.len <= given.len
            {
                return result;
            }
            memset(bytes, 0, whole.len);
            *size = whole.len;
        }
        if given.len >= *size {
            return call(SETREGSET, pid, NT_X86_XSTATE, data);
        }
        memcpy(bytes, given.base, given.len);
        let mut whole = Iovec {
            base: bytes,
            len: *size,
        };
        call(
            SETREGSET,
            pid,
            NT_X86_XSTATE,
            ptr::from_mut(&mut whole).cast(),
        )
    }
}

/// Counts one stop.
unsafe fn count() {
    let mut stops = STOPS.load(Ordering::Relaxed);
    if stops.is_null() {
        // SAFETY: the name is terminated, and so is what the environment holds; `mmap` refuses what is not a file.
        unsafe {
            let named = getenv(c"GUESTMARK_STOPS".as_ptr());
            let descriptor = if named.is_null() { -1 } else { atoi(named) };
            stops = mmap(ptr::null_mut(), 8, READ_WRITE, SHARED, descriptor, 0).cast();
        }
        if stops.addr() == usize::MAX {
            stops = (&raw const UNSEEN).cast_mut();
        }
        STOPS.store(stops, Ordering::Relaxed);
    }
    // SAFETY: it is ours or a page of the file, for as long as this process lives.
    unsafe { (*stops).fetch_add(1, Ordering::Relaxed) };
}

/// Replaces glibc's `ptrace`, whose variable arguments are passed in the same registers as fixed ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(
    request: c_long,
    pid: c_long,
    address: c_long,
    data: *mut c_void,
) -> c_long {
    let request = c_long::from(request as c_int);
    let pid = c_long::from(pid as c_int);
    let mut peeked: c_long = 0;
    // SAFETY: the caller answers for its arguments, as it does to glibc.
    let result = unsafe {
        if request == SETREGSET && address == NT_X86_XSTATE {
            set_state(pid, data)
        } else if PEEK.contains(&request) {
            call(request, pid, address, ptr::from_mut(&mut peeked).cast())
        } else {
            call(request, pid, address, data)
        }
    };
    // SAFETY: glibc's `errno` of this thread.
    unsafe {
        if result < 0 {
            *__errno_location() = -result as c_int;
            return -1;
        }
        if RESUME.contains(&request) {
            count();
        }
        if PEEK.contains(&request) {
            *__errno_location() = 0;
            return peeked;
        }
    }
    result
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
