//! The two inner products that everything is made of, sixteen output channels at a time.

use crate::lanes::Lanes;

/// out_j (+)= Σ_runs Σ_k x_j[run + k]·w[k] for `P` rows, where x_j and out_j are pointers and w is packed `[k][16]`.
#[inline(always)]
pub(crate) unsafe fn rows<V: Lanes, const P: usize>(
    x: [*const f32; P],
    runs: &[usize],
    len: usize,
    mut w: *const f32,
    out: [*mut f32; P],
    accumulate: bool,
) {
    // SAFETY: the caller's pointers hold the runs, the packed weights and sixteen floats of output each.
    unsafe {
        let mut acc = [V::zero(); P];
        if accumulate {
            for j in 0..P {
                acc[j] = V::load(out[j]);
            }
        }
        for &run in runs {
            let mut q = x;
            for pointer in &mut q {
                *pointer = pointer.add(run);
            }
            let mut k = 0;
            while k + 4 <= len {
                for step in 0..4 {
                    let weights = V::load(w.add(16 * step));
                    for j in 0..P {
                        acc[j] = V::splat(*q[j].add(k + step)).fma(weights, acc[j]);
                    }
                }
                w = w.add(64);
                k += 4;
            }
            while k < len {
                let weights = V::load(w);
                for j in 0..P {
                    acc[j] = V::splat(*q[j].add(k)).fma(weights, acc[j]);
                }
                w = w.add(16);
                k += 1;
            }
        }
        for j in 0..P {
            acc[j].store(out[j]);
        }
    }
}

/// c_j += Σ_i x[i·x_step + j]·d_i for `P` rows j, over `count` pixels i of each line: the outer products of a weight
/// gradient. d and c are `[…][16]`; a line is its place in x and in d.
#[inline(always)]
pub(crate) unsafe fn outer<V: Lanes, const P: usize>(
    x: *const f32,
    x_step: usize,
    d: *const f32,
    lines: &[(usize, usize)],
    count: usize,
    c: *mut f32,
) {
    // SAFETY: the caller's lines stay inside x and d, and c holds P rows of sixteen floats.
    unsafe {
        let mut acc = [V::zero(); P];
        for j in 0..P {
            acc[j] = V::load(c.add(j * 16));
        }
        for &(x_line, d_line) in lines {
            let (mut xp, mut dp) = (x.add(x_line), d.add(d_line));
            for _ in 0..count {
                let grad = V::load(dp);
                for j in 0..P {
                    acc[j] = V::splat(*xp.add(j)).fma(grad, acc[j]);
                }
                xp = xp.add(x_step);
                dp = dp.add(16);
            }
        }
        for j in 0..P {
            acc[j].store(c.add(j * 16));
        }
    }
}
