//! Reads the name of the hypervisor from CPUID.

/// Returns the twelve characters of CPUID leaf 0x40000000, such as `KVMKVMKVM` or `VMwareVMware`, without padding;
/// `None` if the processor reports no hypervisor.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // CPUID is a safe function since Rust 1.92
pub fn read_hypervisor_name() -> Option<String> {
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

/// Returns `None`, because only x86 processors have this leaf.
#[cfg(not(target_arch = "x86_64"))]
pub fn read_hypervisor_name() -> Option<String> {
    None
}
