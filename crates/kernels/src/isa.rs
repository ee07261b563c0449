//! Instruction sets, and kernels that run under them.

use std::fmt;

/// An instruction set that this CPU has and the kernels have code for; later ones are faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(Kind);

/// The sets with code of their own. Whether the CPU has one is known of an [`Isa`] alone, which only this module makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// As [`Kind::Avx512`], with products of bf16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Kind {
    /// All sets, in their order.
    const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Bf16,
    ];

    fn is_on_this_cpu(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16"),
        }
    }
}

impl Isa {
    /// Plain Rust, which every CPU runs.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The best set of this CPU.
    pub fn best() -> Self {
        Self::all().next_back().unwrap_or(Self::PORTABLE)
    }

    /// All sets of this CPU: [`Isa::PORTABLE`] first, [`Isa::best`] last.
    pub fn available() -> Vec<Self> {
        Self::all().collect()
    }

    /// `portable`, `avx2`, `avx512` or `avx512bf16`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => "avx512bf16",
        }
    }

    /// What of it counts where activations are f32: no products of bf16.
    pub fn for_f32(self) -> Self {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => Self(Kind::Avx512),
            _ => self,
        }
    }

    /// The set's code; the CPU has its instructions.
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        self.0
    }

    fn all() -> impl DoubleEndedIterator<Item = Self> {
        Kind::ALL.iter().copied().filter(|kind| kind.is_on_this_cpu()).map(Self)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Defines `$name`, which runs the generic `$kernel::<V>`, or `$kernel::<V, T>` for any elements T, with the lanes of an
/// instruction set, its first argument.
macro_rules! dispatch {
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident $(<$($t:ident),+>)? = $kernel:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)] // as many as the kernel has, and the set
        #[inline]
        $vis unsafe fn $name $(<$($t: crate::Element),+>)? (isa: crate::isa::Isa, $($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[allow(clippy::too_many_arguments)] // as many as the kernel has
                #[target_feature(enable = "avx512f")]
                unsafe fn avx512 $(<$($t: crate::Element),+>)? ($($arg: $type),*) $(-> $out)? {
                    unsafe { $kernel::<crate::lanes::Avx512 $(, $($t),+)?>($($arg),*) }
                }
                #[allow(clippy::too_many_arguments)] // as above
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2 $(<$($t: crate::Element),+>)? ($($arg: $type),*) $(-> $out)? {
                    unsafe { $kernel::<crate::lanes::Avx2 $(, $($t),+)?>($($arg),*) }
                }
                // SAFETY: there is an `Isa` only of sets that this CPU has; the rest is the caller's contract.
                match isa.kind() {
                    crate::isa::Kind::Avx512 | crate::isa::Kind::Avx512Bf16 => return unsafe { avx512($($arg),*) },
                    crate::isa::Kind::Avx2 => return unsafe { avx2($($arg),*) },
                    crate::isa::Kind::Portable => {}
                }
            }
            // Elsewhere there is one set.
            #[cfg(not(target_arch = "x86_64"))]
            let crate::isa::Kind::Portable = isa.kind();
            // SAFETY: the caller's contract.
            unsafe { $kernel::<crate::lanes::Portable $(, $($t),+)?>($($arg),*) }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use super::Isa;

    #[test]
    fn sets_are_in_order_from_plain_rust_to_the_best() {
        let all = Isa::available();
        assert_eq!((all[0], all[all.len() - 1]), (Isa::PORTABLE, Isa::best()));
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        let known = ["portable", "avx2", "avx512", "avx512bf16"];
        assert!(all.iter().zip(known).all(|(isa, name)| isa.name() == name && isa.to_string() == name), "{all:?}");
    }
}
