//! The two inner products that everything is made of: `P` rows by `C` blocks of sixteen output channels.

use crate::lanes::{Lanes, load, splat, store};
use crate::shared::Shared;

/// out[to_j + c·out_block] (+)= Σ_runs Σ_k x[from_j + run + k]·w[c·w_block + k], with w packed `[run][k][16]`.
#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
pub(crate) unsafe fn rows<V: Lanes, const P: usize, const C: usize>(
    x: &[f32],
    from: [usize; P],
    runs: &[usize],
    len: usize,
    w: &[f32],
    w_block: usize,
    out: &Shared,
    to: [usize; P],
    out_block: usize,
    accumulate: bool,
) {
    // SAFETY: the caller's places hold the runs, the packed weights and sixteen floats for each row and block.
    unsafe {
        let mut acc = [[V::zero(); C]; P];
        if accumulate {
            for j in 0..P {
                for c in 0..C {
                    acc[j][c] = out.load(to[j] + c * out_block);
                }
            }
        }
        let mut at = 0;
        for &run in runs {
            let mut k = 0;
            macro_rules! step {
                () => {
                    let mut weights = [V::zero(); C];
                    for c in 0..C {
                        weights[c] = load(w, at + c * w_block);
                    }
                    for j in 0..P {
                        let value: V = splat(x, from[j] + run + k);
                        for c in 0..C {
                            acc[j][c] = value.fma(weights[c], acc[j][c]);
                        }
                    }
                    at += 16;
                    k += 1;
                };
            }
            while k + 4 <= len {
                step!();
                step!();
                step!();
                step!();
            }
            while k < len {
                step!();
            }
        }
        for j in 0..P {
            for c in 0..C {
                out.store(acc[j][c], to[j] + c * out_block);
            }
        }
    }
}

/// `count` pixels in a row, and their places in x and d.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) x: usize,
    pub(crate) d: usize,
    pub(crate) count: usize,
}

/// out[to + c·out_block + 16·j] (+)= Σ_i x[line + i·x_step + j]·d[line + 16·i + c·d_block] for `P` rows j, over the
/// pixels i of each line: the outer products of a weight gradient.
#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
pub(crate) unsafe fn outer<V: Lanes, const P: usize, const C: usize>(
    x: &[f32],
    x_from: usize,
    x_step: usize,
    d: &[f32],
    d_from: usize,
    d_block: usize,
    lines: &[Line],
    out: &mut [f32],
    to: usize,
    out_block: usize,
    accumulate: bool,
) {
    // SAFETY: the caller's lines stay inside x and d, and out holds P rows of sixteen floats for each block.
    unsafe {
        let mut acc = [[V::zero(); C]; P];
        if accumulate {
            for j in 0..P {
                for c in 0..C {
                    acc[j][c] = load(out, to + c * out_block + 16 * j);
                }
            }
        }
        for line in lines {
            let (mut x_at, mut d_at) = (x_from + line.x, d_from + line.d);
            for _ in 0..line.count {
                let mut grad = [V::zero(); C];
                for c in 0..C {
                    grad[c] = load(d, d_at + c * d_block);
                }
                for j in 0..P {
                    let value: V = splat(x, x_at + j);
                    for c in 0..C {
                        acc[j][c] = value.fma(grad[c], acc[j][c]);
                    }
                }
                x_at += x_step;
                d_at += 16;
            }
        }
        for j in 0..P {
            for c in 0..C {
                store(acc[j][c], out, to + c * out_block + 16 * j);
            }
        }
    }
}
