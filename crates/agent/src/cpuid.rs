//! What the processor says of itself: the hypervisor it runs under, the size of its state.

/// The twelve characters of CPUID leaf 0x40000000, such as `KVMKVMKVM` or `VMwareVMware`, without padding; `None` where
/// the processor does not say that there is a hypervisor.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // CPUID is a safe function since Rust 1.92
pub fn hypervisor() -> Option<String> {
    use std::arch::x86_64::__cpuid;

    const PRESENT: u32 = 1 << 31;
    // SAFETY: every x86_64 processor has CPUID.
    let (features, leaf) = unsafe { (__cpuid(1), __cpuid(0x4000_0000)) };
    if features.ecx & PRESENT == 0 {
        return None;
    }
    let name: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx]
        .iter()
        .flat_map(|register| register.to_le_bytes())
        .filter(|byte| (b' '..=b'~').contains(byte))
        .collect();
    Some(String::from_utf8_lossy(&name).trim().to_owned())
}

/// `None`: only x86 processors have such a leaf.
#[cfg(not(target_arch = "x86_64"))]
pub fn hypervisor() -> Option<String> {
    None
}

/// The bytes of a process's extended state as XSAVE writes it, with all that this kernel has enabled; `None` where the
/// processor has no XSAVE.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // CPUID is a safe function since Rust 1.92
pub fn state_size() -> Option<u32> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    const ENABLED: u32 = 1 << 27;
    const EXTENDED_STATE: u32 = 0xD;
    // SAFETY: every x86_64 processor has CPUID, and a leaf above the highest is zeroes or the highest.
    let (highest, features) = unsafe { (__cpuid(0).eax, __cpuid(1).ecx) };
    if features & ENABLED == 0 || highest < EXTENDED_STATE {
        return None;
    }
    // SAFETY: the leaf is there.
    Some(unsafe { __cpuid_count(EXTENDED_STATE, 0) }.ebx)
}

/// `None`: only x86 processors have XSAVE.
#[cfg(not(target_arch = "x86_64"))]
pub fn state_size() -> Option<u32> {
    None
}
