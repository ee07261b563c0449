//! Trainers that compute in different ways, side by side in one process: each gives the bytes that it gives alone.

use crate::paths::{advance, learner};
use burn::tensor::Device;
use sogclr::cpu::{Engine, Isa};
use sogclr::encoder::{Compute, Precision};
use sogclr::params::export;
use sogclr::train::Learner;
use std::sync::Barrier;

const STEPS: usize = 3;

fn choices() -> [Compute; 5] {
    let portable = Engine { isa: Isa::PORTABLE, ..Engine::default() };
    let bf16 = Compute::cpu().with_precision(Precision::Bf16);
    [Compute::cpu(), Compute::cpu_exact(), Compute::cpu_with(portable), bf16, Compute::plain(Device::flex())]
}

/// The bits of all weights and buffers, and of the per-sample state.
fn bits(learner: &Learner) -> Vec<Vec<u32>> {
    let weights = export(learner.model());
    let state = learner.state.columns().map(|(_, values)| values);
    let all = weights.values().map(|tensor| tensor.values.as_slice()).chain(state);
    all.map(|values| values.iter().map(|v| v.to_bits()).collect()).collect()
}

fn train(compute: &Compute) -> Vec<Vec<u32>> {
    let mut learner = learner(compute);
    for step in 0..STEPS {
        advance(&mut learner, compute.layout(), step);
    }
    bits(&learner)
}

#[test]
fn trainers_side_by_side_give_the_bytes_of_each_alone() {
    let choices = choices();
    let alone = choices.each_ref().map(train);
    let [fast, exact, _, bf16, plain] = &alone;
    assert!(fast != exact && exact != plain && fast != plain && fast != bf16, "the choice shows");

    let start = Barrier::new(choices.len());
    let parallel = std::thread::scope(|scope| {
        let threads = choices.each_ref().map(|compute| {
            scope.spawn(|| {
                start.wait();
                train(compute)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let mut learners = choices.each_ref().map(learner);
    for step in 0..STEPS {
        for (learner, compute) in learners.iter_mut().zip(&choices) {
            advance(learner, compute.layout(), step);
        }
    }
    let interleaved = learners.each_ref().map(bits);
    for (k, compute) in choices.iter().enumerate() {
        assert!(parallel[k] == alone[k], "in parallel: {compute:?}");
        assert!(interleaved[k] == alone[k], "interleaved: {compute:?}");
    }
}
