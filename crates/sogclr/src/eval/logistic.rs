//! Multinomial logistic regression: minimise mean cross-entropy + ½λ‖W‖² (bias free), a convex problem solved by
//! L-BFGS in f64. Sums run over fixed blocks of rows in order, so the result does not depend on threads.

use super::{Accuracy, Labelled};
use crate::math::Matrix;
use ndarray::{Array1, Array2, Axis, s};
use rayon::prelude::*;
use std::collections::VecDeque;

/// Blocks of rows; a fixed number, so that sums have one order and few gradients are in memory.
const BLOCKS: usize = 32;
const HISTORY: usize = 10;

/// Scores = W·x + b.
#[derive(Clone, Debug)]
pub struct LinearClassifier {
    /// `[classes, dim]`
    pub weight: Array2<f64>,
    /// `[classes]`
    pub bias: Array1<f64>,
}

impl LinearClassifier {
    /// W = 0 and b = 0.
    pub fn zeros(classes: usize, dim: usize) -> Self {
        Self { weight: Array2::zeros((classes, dim)), bias: Array1::zeros(classes) }
    }

    /// `[rows, classes]`
    pub fn scores(&self, features: &Matrix) -> Array2<f64> {
        features.mapv(f64::from).dot(&self.weight.t()) + &self.bias
    }

    /// Accuracy on labelled features.
    pub fn accuracy(&self, test: &Labelled) -> Accuracy {
        let rows: Vec<Vec<f64>> = self.scores(&test.features).outer_iter().map(|row| row.to_vec()).collect();
        Accuracy::from_scores(rows.iter().map(Vec::as_slice), &test.labels)
    }

    /// Mean cross-entropy of `labels` and its gradient.
    pub fn loss_and_gradient(&self, features: &Matrix, labels: &[u32]) -> (f64, Self) {
        let rows = labels.len();
        let size = rows.div_ceil(BLOCKS);
        let blocks: Vec<(f64, Self)> = (0..rows.div_ceil(size))
            .into_par_iter()
            .map(|block| {
                let range = block * size..((block + 1) * size).min(rows);
                let x = features.slice(s![range.clone(), ..]).mapv(f64::from);
                let mut p = x.dot(&self.weight.t()) + &self.bias;
                let mut loss = 0.0;
                for (mut row, &label) in p.axis_iter_mut(Axis(0)).zip(&labels[range]) {
                    let max = row.fold(f64::NEG_INFINITY, |m, &v| m.max(v));
                    let log_sum = max + row.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
                    loss += log_sum - row[label as usize];
                    row.mapv_inplace(|v| (v - log_sum).exp());
                    row[label as usize] -= 1.0;
                }
                (loss, Self { weight: p.t().dot(&x), bias: p.sum_axis(Axis(0)) })
            })
            .collect();
        let (classes, dim) = self.weight.dim();
        let mut total = (0.0, Self::zeros(classes, dim));
        for (loss, gradient) in blocks {
            total.0 += loss;
            total.1.weight += &gradient.weight;
            total.1.bias += &gradient.bias;
        }
        let scale = 1.0 / rows as f64;
        total.1.weight *= scale;
        total.1.bias *= scale;
        (total.0 * scale, total.1)
    }

    pub(super) fn flat(&self) -> Array1<f64> {
        self.weight.iter().chain(&self.bias).copied().collect()
    }

    pub(super) fn from_flat(flat: &Array1<f64>, classes: usize, dim: usize) -> Self {
        let weight = flat.slice(s![..classes * dim]).to_owned().into_shape_with_order((classes, dim));
        Self { weight: weight.expect("classes·dim values"), bias: flat.slice(s![classes * dim..]).to_owned() }
    }
}

/// The minimiser, and the minimum. Stops when no component of the gradient exceeds `tolerance`, or after
/// `max_iterations`.
pub fn fit_logistic(
    data: &Labelled,
    classes: usize,
    lambda: f64,
    tolerance: f64,
    max_iterations: usize,
) -> (LinearClassifier, f64) {
    let dim = data.features.ncols();
    let objective = |flat: &Array1<f64>| {
        let classifier = LinearClassifier::from_flat(flat, classes, dim);
        let (loss, mut gradient) = classifier.loss_and_gradient(&data.features, &data.labels);
        gradient.weight.scaled_add(lambda, &classifier.weight);
        let penalty = 0.5 * lambda * classifier.weight.iter().map(|w| w * w).sum::<f64>();
        (loss + penalty, gradient.flat())
    };
    let mut x = LinearClassifier::zeros(classes, dim).flat();
    let (mut value, mut gradient) = objective(&x);
    let mut history: VecDeque<(Array1<f64>, Array1<f64>)> = VecDeque::new();
    for _ in 0..max_iterations {
        if gradient.iter().all(|g| g.abs() <= tolerance) {
            break;
        }
        let direction = two_loop(&gradient, &history);
        let slope = direction.dot(&gradient);
        // Armijo's rule: halve until the value falls enough.
        let mut length = if history.is_empty() { 1.0 / gradient.dot(&gradient).sqrt().max(1.0) } else { 1.0 };
        let accepted = loop {
            let candidate = &x + &(&direction * length);
            let (new_value, new_gradient) = objective(&candidate);
            if new_value <= value + 1e-4 * length * slope {
                break Some((candidate, new_value, new_gradient));
            }
            length *= 0.5;
            if length < 1e-12 {
                break None;
            }
        };
        let Some((new_x, new_value, new_gradient)) = accepted else { break };
        let (step, change) = (&new_x - &x, &new_gradient - &gradient);
        if step.dot(&change) > 1e-12 * change.dot(&change) {
            history.push_back((step, change));
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
        (x, value, gradient) = (new_x, new_value, new_gradient);
    }
    (LinearClassifier::from_flat(&x, classes, dim), value)
}

/// −H·g with H the L-BFGS approximation of the inverse Hessian.
fn two_loop(gradient: &Array1<f64>, history: &VecDeque<(Array1<f64>, Array1<f64>)>) -> Array1<f64> {
    let mut q = gradient.clone();
    let mut alphas = Vec::with_capacity(history.len());
    for (s, y) in history.iter().rev() {
        let alpha = s.dot(&q) / s.dot(y);
        q.scaled_add(-alpha, y);
        alphas.push(alpha);
    }
    if let Some((s, y)) = history.back() {
        q *= s.dot(y) / y.dot(y);
    }
    for ((s, y), alpha) in history.iter().zip(alphas.into_iter().rev()) {
        let beta = y.dot(&q) / s.dot(y);
        q.scaled_add(alpha - beta, s);
    }
    -q
}
