//! Applies a rule to one parameter: as tensor operations, or in place and in parallel on the CPU.

use super::{At, Rule};
use crate::cpu::in_place;
use burn::tensor::Tensor;
use rayon::prelude::*;

/// Values of one task on the CPU.
const CHUNK: usize = 1 << 14;

/// The new parameter; `slots` are updated.
pub(super) fn update<R: Rule>(rule: &R, w: Tensor<1>, g: Tensor<1>, slots: &mut Vec<Tensor<1>>, at: At) -> Tensor<1> {
    let at = At { constants: rule.constants(at), ..at };
    let mut all = vec![w, g];
    all.append(slots);
    match in_place(all, |all| match all {
        [w, g, slots @ ..] => update_values(rule, w, g, slots, at),
        _ => unreachable!("a parameter and its gradient"),
    }) {
        Ok(mut all) => {
            *slots = all.split_off(2);
            all.swap_remove(0)
        }
        Err(mut all) => {
            *slots = all.split_off(2);
            let g = all.pop().expect("a gradient");
            update_tensors(rule, all.pop().expect("a parameter"), g, slots, at)
        }
    }
}

fn update_tensors<R: Rule>(rule: &R, w: Tensor<1>, g: Tensor<1>, slots: &mut [Tensor<1>], at: At) -> Tensor<1> {
    let mut g = rule.decayed(w.clone(), g, at);
    if let Some(trust) = rule.trust(at) {
        let (norm_w, norm_g) = (l2_norm(&w), l2_norm(&g));
        // ratio 1 where a norm is 0
        let undefined = (norm_w.clone() * norm_g.clone()).equal_scalar(0.0);
        g = g * (norm_w * trust / norm_g).mask_fill(undefined, 1.0);
    }
    rule.update(w, g, slots, at)
}

/// The rule, `at` and the ratio are copied into every task: through a reference they would be read again for each value.
fn update_values<R: Rule>(rule: &R, w: &mut [f32], g: &mut [f32], slots: &mut [&mut [f32]], at: At) {
    let ratio = rule.trust(at).map_or(1.0, |trust| {
        // f64 sums of fixed chunks, added in order: the same for any number of threads.
        let sums: Vec<(f64, f64)> = w
            .par_chunks(CHUNK)
            .zip(g.par_chunks(CHUNK))
            .map(|(w, g)| {
                let square = |v: f32| f64::from(v) * f64::from(v);
                let add = |(a, b), (&w, &g)| (a + square(w), b + square(rule.decayed(w, g, at)));
                w.iter().zip(g).fold((0.0, 0.0), add)
            })
            .collect();
        let (w, g) = sums.into_iter().fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
        if w * g == 0.0 { 1.0 } else { (trust * w.sqrt() / g.sqrt()) as f32 }
    });
    let rule = *rule;
    let values = w.par_chunks_mut(CHUNK).zip(g.par_chunks(CHUNK));
    match slots {
        [a] => values.zip(a.par_chunks_mut(CHUNK)).for_each(|((w, g), a)| {
            let (rule, at, ratio) = (rule, at, ratio);
            for ((w, &g), a) in w.iter_mut().zip(g).zip(a) {
                let mut own = [*a];
                *w = rule.update(*w, rule.decayed(*w, g, at) * ratio, &mut own, at);
                [*a] = own;
            }
        }),
        [a, b] => {
            let slots = a.par_chunks_mut(CHUNK).zip(b.par_chunks_mut(CHUNK));
            values.zip(slots).for_each(|((w, g), (a, b))| {
                let (rule, at, ratio) = (rule, at, ratio);
                for ((w, &g), (a, b)) in w.iter_mut().zip(g).zip(a.iter_mut().zip(b)) {
                    let mut own = [*a, *b];
                    *w = rule.update(*w, rule.decayed(*w, g, at) * ratio, &mut own, at);
                    [*a, *b] = own;
                }
            });
        }
        _ => unreachable!("rules have one or two slots"),
    }
}

/// ‖x‖ as a tensor of one element, so that nothing waits for the device. Summed by rows first, which rounds less.
fn l2_norm(x: &Tensor<1>) -> Tensor<1> {
    const ROW: usize = 4096;
    let [len] = x.dims();
    let squares = x.clone() * x.clone();
    let whole = len / ROW * ROW;
    let head = (whole > 0).then(|| squares.clone().narrow(0, 0, whole).reshape([whole / ROW, ROW]).sum_dim(1).sum());
    let tail = (whole < len).then(|| squares.narrow(0, whole, len - whole).sum());
    let total = head.into_iter().chain(tail).reduce(|a, b| a + b).expect("a parameter is not empty");
    total.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{AdamW, Lars, PaperMomentum, Sgd};
    use burn::tensor::{Device, TensorData};

    #[test]
    fn l2_norm_covers_the_rest_of_the_last_row() {
        for len in [3, 4096, 5000] {
            let x = Tensor::<1>::full([len], 2.0, &Device::flex());
            let norm: f32 = l2_norm(&x).into_scalar();
            assert!((norm - (4.0 * len as f32).sqrt()).abs() < 1e-2, "{len}: {norm}");
        }
    }

    fn tensor(len: usize, phase: f32) -> Tensor<1> {
        let values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37 + phase).sin()).collect();
        Tensor::from_data(TensorData::new(values, [len]), &Device::flex())
    }

    fn largest_difference(a: &Tensor<1>, b: &Tensor<1>) -> f32 {
        (a.clone() - b.clone()).abs().max().into_scalar()
    }

    /// Three updates as tensor operations and as values in place.
    fn check<R: Rule>(rule: &R) {
        for (len, is_vector) in [(7, true), (7, false), (CHUNK + 5, false)] {
            let mut slots = vec![tensor(len, 0.0) * 0.0; rule.slots()];
            let mut in_place = slots.clone();
            let (mut w, mut v) = (tensor(len, 1.0), tensor(len, 1.0));
            for step in 1..=3 {
                let mut at = At { lr: 0.1, step, is_vector, constants: [0.0; 2] };
                at.constants = rule.constants(at);
                let g = tensor(len, 2.0 + step as f32);
                w = update_tensors(rule, w, g.clone(), &mut slots, at);
                v = update(rule, v, g, &mut in_place, at);
                let difference = largest_difference(&w, &v);
                assert!(difference < 2e-6, "{len} values, step {step}: {difference}");
                for (a, b) in slots.iter().zip(&in_place) {
                    assert!(largest_difference(a, b) < 2e-6, "{len} values, step {step}, slot");
                }
            }
        }
    }

    #[test]
    fn values_in_place_follow_the_tensor_operations() {
        check(&Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 });
        check(&Lars { momentum: 0.9, weight_decay: 0.1, trust: 0.5 });
        check(&AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 });
        check(&PaperMomentum { beta: 0.3 });
    }
}
