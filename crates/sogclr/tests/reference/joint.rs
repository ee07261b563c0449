//! Losses that contrast nothing (BYOL, SimSiam, Barlow Twins, VICReg) against PyTorch, plain f64 loops and finite differences.

use crate::files::{Golden, json};
use ndarray::{Array2, Axis, Ix2};
use serde_json::Value;
use sogclr::loss::{BarlowTwins, Byol, EmbeddingSets, Loss, LossInput, LossOutput, SetName, SimSiam, VicReg};
use sogclr::math::{Matrix, SampleRng};
use sogclr::state::SampleState;

/// The sets of a loss under the names of `reference/joint.py`; the first two have a gradient.
const PREDICTED: [(&str, SetName); 2] = [("p_a", SetName::Predictor(0)), ("p_b", SetName::Predictor(1))];
const VIEWS: [(&str, SetName); 2] = [("z_a", SetName::View(0)), ("z_b", SetName::View(1))];
const KEYS: [(&str, SetName); 2] = [("k_a", SetName::Key(0)), ("k_b", SetName::Key(1))];

pub fn sets_of(kind: &str) -> Vec<(&'static str, SetName)> {
    match kind {
        "byol" => [PREDICTED, KEYS].concat(),
        "simsiam" => [PREDICTED, VIEWS].concat(),
        _ => VIEWS.to_vec(),
    }
}

pub fn loss_of(kind: &str, config: &Value) -> Box<dyn Loss> {
    let number = |key: &str| config[key].as_f64().unwrap();
    match kind {
        "byol" => Box::new(Byol),
        "simsiam" => Box::new(SimSiam),
        "barlow-twins" => Box::new(BarlowTwins { lambda: number("lambda") }),
        "vicreg" => {
            let (invariance, variance, covariance) = (number("invariance"), number("variance"), number("covariance"));
            Box::new(VicReg { invariance, variance, covariance })
        }
        other => panic!("unknown kind {other}"),
    }
}

/// One evaluation on raw embeddings.
pub fn evaluate(loss: &dyn Loss, raw: Vec<(SetName, Matrix)>) -> LossOutput {
    let ids: Vec<usize> = (0..raw[0].1.nrows()).collect();
    let state = SampleState::new(ids.len(), &[]);
    let sets = EmbeddingSets::new(raw);
    let out = loss.forward(&LossInput::new(&sets, &ids, &state)).unwrap();
    assert!(loss.columns().is_empty() && out.update.columns.is_empty() && out.parameter_grads.is_empty());
    assert_eq!(out.objective, None, "nothing is contrasted");
    out
}

/// Within `tolerance` of the largest value.
fn assert_close(what: &str, ours: &Matrix, want: &Array2<f64>, tolerance: f64) {
    assert_eq!(ours.dim(), want.dim(), "{what}");
    let largest = want.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    for (ours, want) in ours.iter().zip(want) {
        let error = (f64::from(*ours) - want).abs();
        assert!(error <= tolerance * largest, "{what}: {ours} vs {want}, error {error} of {largest}");
    }
}

#[test]
fn joint_losses_and_gradients_follow_pytorch() {
    let (golden, info) = (Golden::open("joint.safetensors"), json("joint.json"));
    for (kind, configs) in info["configs"].as_object().unwrap() {
        for (c, config) in configs.as_array().unwrap().iter().enumerate() {
            let (loss, sets) = (loss_of(kind, config), sets_of(kind));
            for t in 0..info["steps"].as_u64().unwrap() as usize {
                let label = format!("{kind}.c{c} step {t}");
                let step = |name: &str| {
                    golden.get(name).index_axis(Axis(0), t).to_owned().into_dimensionality::<Ix2>().unwrap()
                };
                let raw = sets.iter().map(|(name, set)| (*set, step(name).mapv(|v| v as f32))).collect();
                let out = evaluate(loss.as_ref(), raw);
                let want = golden.get(&format!("{kind}.c{c}.loss"))[[t]];
                let error = (out.loss - want).abs();
                assert!(error <= 2e-6 * want.abs(), "{label}: {} vs {want}, error {error}", out.loss);
                assert_eq!(out.grads.len(), 2, "{label}");
                for ((name, set), (found, grad)) in sets.iter().zip(&out.grads) {
                    assert_eq!(set, found, "{label}");
                    let field = format!("{kind}.c{c}.grad_{}", name.trim_start_matches("z_"));
                    assert_close(&format!("{label} {field}"), grad, &step(&field), 2e-6);
                }
            }
        }
    }
}

fn norm(row: &[f64]) -> f64 {
    row.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Mean over the batch of ‖p̄ − k̄‖².
fn apart(p: &Array2<f64>, k: &Array2<f64>) -> f64 {
    let mut total = 0.0;
    for (p, k) in p.outer_iter().zip(k.outer_iter()) {
        let (p, k) = (p.to_vec(), k.to_vec());
        total += p.iter().zip(&k).map(|(a, b)| (a / norm(&p) - b / norm(&k)).powi(2)).sum::<f64>();
    }
    total / p.nrows() as f64
}

/// Σ over the batch of (aᵢ − mean)(bⱼ − mean).
fn together(a: &Array2<f64>, i: usize, b: &Array2<f64>, j: usize) -> f64 {
    let mean = |m: &Array2<f64>, j: usize| (0..m.nrows()).map(|n| m[[n, j]]).sum::<f64>() / m.nrows() as f64;
    let (of_a, of_b) = (mean(a, i), mean(b, j));
    (0..a.nrows()).map(|n| (a[[n, i]] - of_a) * (b[[n, j]] - of_b)).sum()
}

/// A loss from its definition; `m` in the order of [`sets_of`].
fn defined(kind: &str, config: &Value, m: &[Array2<f64>]) -> f64 {
    let number = |key: &str| config[key].as_f64().unwrap();
    let (rows, dim) = m[0].dim();
    let pairs = || (0..dim).flat_map(|i| (0..dim).map(move |j| (i, j)));
    match kind {
        "byol" => apart(&m[0], &m[3]) + apart(&m[1], &m[2]),
        // −cos = ‖·‖²/2 − 1
        "simsiam" => (apart(&m[0], &m[3]) + apart(&m[1], &m[2])) / 4.0 - 1.0,
        "barlow-twins" => {
            let deviation = |m: &Array2<f64>, i: usize| (together(m, i, m, i) / rows as f64 + 1e-5).sqrt();
            let term = |(i, j): (usize, usize)| {
                let c = together(&m[0], i, &m[1], j) / (rows as f64 * deviation(&m[0], i) * deviation(&m[1], j));
                if i == j { (1.0 - c).powi(2) } else { number("lambda") * c.powi(2) }
            };
            pairs().map(term).sum()
        }
        "vicreg" => {
            let mut total = 0.0;
            for index in ndarray::indices((rows, dim)) {
                total += number("invariance") * (m[0][index] - m[1][index]).powi(2) / (rows * dim) as f64;
            }
            for m in m {
                let covariance = |i: usize, j: usize| together(m, i, m, j) / (rows - 1) as f64;
                for (i, j) in pairs() {
                    total += match i == j {
                        true => number("variance") / 2.0 * (1.0 - (covariance(i, i) + 1e-4).sqrt()).max(0.0),
                        false => number("covariance") * covariance(i, j).powi(2),
                    } / dim as f64;
                }
            }
            total
        }
        other => panic!("unknown kind {other}"),
    }
}

/// Dimensions of spread below and above 1, their means away from 0.
fn random(sets: usize) -> Vec<Matrix> {
    let mut rng = SampleRng::weights(17, "joint");
    let (spread, shift) = ([0.4, 1.3, 0.7, 2.0, 0.2], [0.5, -1.0, 0.3, 0.8, -0.4]);
    (0..sets).map(|_| Matrix::from_shape_fn((7, 5), |(_, j)| spread[j] * rng.normal() + shift[j])).collect()
}

#[test]
fn joint_losses_are_their_definitions_and_gradients_their_finite_differences() {
    for (kind, configs) in json("joint.json")["configs"].as_object().unwrap() {
        for config in configs.as_array().unwrap() {
            let sets = sets_of(kind);
            let raw = random(sets.len());
            let out = evaluate(
                loss_of(kind, config).as_ref(),
                sets.iter().map(|(_, set)| *set).zip(raw.iter().cloned()).collect(),
            );
            let wide: Vec<Array2<f64>> = raw.iter().map(|m| m.mapv(f64::from)).collect();
            if kind == "vicreg" {
                let deviation = |m: &Array2<f64>, j: usize| (together(m, j, m, j) / 6.0 + 1e-4).sqrt();
                let all: Vec<f64> = wide.iter().flat_map(|m| (0..5).map(|j| deviation(m, j))).collect();
                assert!(all.iter().all(|s| (s - 1.0).abs() > 1e-2), "none at the kink: {all:?}");
                assert!(all.iter().any(|s| *s < 1.0) && all.iter().any(|s| *s > 1.0), "both sides of it");
            }
            let want = defined(kind, config, &wide);
            assert!((out.loss - want).abs() <= 1e-6 * want.abs(), "{kind} {config}: {} vs {want}", out.loss);
            for (place, (set, grad)) in out.grads.iter().enumerate() {
                assert_eq!(*set, sets[place].1);
                let h = 1e-5;
                let slope = |index: (usize, usize)| {
                    let shifted = |by: f64| {
                        let mut moved = wide.clone();
                        moved[place][index] += by;
                        defined(kind, config, &moved)
                    };
                    (shifted(h) - shifted(-h)) / (2.0 * h)
                };
                let numeric = Array2::from_shape_fn(grad.dim(), slope);
                assert_close(&format!("{kind} {config} {set}"), grad, &numeric, 2e-6);
            }
            assert_eq!(out.grads.len(), 2, "{kind}");
        }
    }
}
