//! Picks the instruction set once, and runs kernels under it.

use std::sync::atomic::{AtomicU8, Ordering};

/// Instruction sets with a kernel of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    Portable = 1,
    Avx2 = 2,
    Avx512 = 3,
}

/// 0: not chosen yet.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// The best set of this CPU, unless [`force`] chose another.
pub fn isa() -> Isa {
    match CHOSEN.load(Ordering::Relaxed) {
        1 => Isa::Portable,
        2 => Isa::Avx2,
        3 => Isa::Avx512,
        _ => {
            let best = best();
            CHOSEN.store(best as u8, Ordering::Relaxed);
            best
        }
    }
}

/// The best set that this CPU has.
pub fn best() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return Isa::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Isa::Avx2;
        }
    }
    Isa::Portable
}

/// Uses `isa` from now on; for tests and comparisons.
///
/// # Panics
/// If this CPU does not have it.
pub fn force(isa: Isa) {
    assert!(isa <= best(), "this CPU has no {isa:?}");
    CHOSEN.store(isa as u8, Ordering::Relaxed);
}

/// Defines `$name`, which runs the generic `$kernel::<V>` with the lanes of the chosen instruction set.
macro_rules! dispatch {
    ($(#[$meta:meta])* unsafe fn $name:ident = $kernel:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)] // as many as the kernel has
        #[inline]
        unsafe fn $name($($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[allow(clippy::too_many_arguments)] // as above
                #[target_feature(enable = "avx512f")]
                unsafe fn avx512($($arg: $type),*) $(-> $out)? {
                    unsafe { $kernel::<crate::lanes::Avx512>($($arg),*) }
                }
                #[allow(clippy::too_many_arguments)] // as above
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2($($arg: $type),*) $(-> $out)? {
                    unsafe { $kernel::<crate::lanes::Avx2>($($arg),*) }
                }
                // SAFETY: `isa` only names sets that this CPU has; the rest is the caller's contract.
                match crate::isa::isa() {
                    crate::isa::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    crate::isa::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    crate::isa::Isa::Portable => {}
                }
            }
            // SAFETY: the caller's contract.
            unsafe { $kernel::<crate::lanes::Portable>($($arg),*) }
        }
    };
}
pub(crate) use dispatch;
