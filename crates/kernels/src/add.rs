//! Addition in place: where two gradients meet.

use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use rayon::prelude::*;

/// Values of one task.
const CHUNK: usize = 1 << 15;

/// to ← to + other
pub fn add_to<T: Element>(isa: Isa, to: &mut [T], other: &[T]) {
    assert_eq!(to.len(), other.len(), "as many values");
    to.par_chunks_mut(CHUNK).zip(other.par_chunks(CHUNK)).for_each(|(to, other)| {
        // SAFETY: the chunks have one length.
        unsafe { add_chunk(isa, to, other) };
    });
}

dispatch! {
    unsafe fn add_chunk<T> = add_chunk_with(to: &mut [T], other: &[T])
}

#[inline(always)]
unsafe fn add_chunk_with<V: Lanes, T: Element>(to: &mut [T], other: &[T]) {
    let whole = to.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: sixteen values from `at` are inside both.
        unsafe { store(load::<V>(to, at).add(load(other, at)), to, at) };
    }
    for (to, other) in to[whole..].iter_mut().zip(&other[whole..]) {
        *to = T::from_f32(to.to_f32() + other.to_f32());
    }
}
