//! f32 values as those of another type.

use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use rayon::prelude::*;

/// Values of one task.
const CHUNK: usize = 1 << 15;

/// to ← the nearest values to `from`
pub fn round_to<T: Element>(isa: Isa, from: &[f32], to: &mut [T]) {
    assert_eq!(from.len(), to.len(), "as many values");
    from.par_chunks(CHUNK).zip(to.par_chunks_mut(CHUNK)).for_each(|(from, to)| {
        // SAFETY: the chunks have one length.
        unsafe { round_chunk(isa, from, to) };
    });
}

dispatch! {
    unsafe fn round_chunk<T> = round_chunk_with(from: &[f32], to: &mut [T])
}

#[inline(always)]
unsafe fn round_chunk_with<V: Lanes, T: Element>(from: &[f32], to: &mut [T]) {
    let whole = from.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: sixteen values from `at` are inside both.
        unsafe { store(load::<V>(from, at), to, at) };
    }
    for (from, to) in from[whole..].iter().zip(&mut to[whole..]) {
        *to = T::from_f32(*from);
    }
}
