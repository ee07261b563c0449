//! A loss alone: from raw embeddings to the gradient of each, on random embeddings.

use super::{cpu_seconds, median, peak_rss_mb};
use crate::loss::{EmbeddingSets, Loss, LossError, LossInput, SetName};
use crate::math::{Matrix, SampleRng, UnitRows};
use crate::state::SampleState;
use serde::Serialize;
use std::time::Instant;

/// Rows of the queue, for losses that look at one.
const QUEUE: usize = 4096;
const CLASSES: u32 = 10;
/// Evaluations that are not counted.
const WARM_UP: usize = 2;

/// Medians over the evaluations.
#[derive(Clone, Debug, Serialize)]
pub struct LossReport {
    pub ms_median: f64,
    /// `null` where the system does not tell.
    pub cpu_ms: Option<f64>,
    pub peak_rss_mb: Option<f64>,
}

/// Evaluates `loss` on a batch of `batch` samples with embeddings of `dim` values.
pub fn measure_loss(loss: &dyn Loss, batch: usize, dim: usize, repeats: usize) -> Result<LossReport, LossError> {
    let mut rng = SampleRng::weights(0, "bench");
    let mut random = |rows: usize| Matrix::from_shape_fn((rows, dim), |_| rng.normal());
    let names = [SetName::View(0), SetName::View(1), SetName::Key(1), SetName::Predictor(0), SetName::Predictor(1)];
    let raw: Vec<(SetName, Matrix)> =
        names.into_iter().chain([SetName::Jigsaw, SetName::Text]).map(|name| (name, random(batch))).collect();
    let queue = UnitRows::new(random(QUEUE));
    let ids: Vec<usize> = (0..batch).collect();
    let labels: Vec<u32> = (0..batch as u32).map(|id| id % CLASSES).collect();
    let mut state = SampleState::new(batch, loss.columns());
    let (mut times, mut cpu) = (Vec::with_capacity(repeats), None);
    for index in 0..WARM_UP + repeats {
        if index == WARM_UP {
            cpu = cpu_seconds();
        }
        let start = Instant::now();
        let sets = EmbeddingSets::new(raw.iter().map(|(name, h)| (*name, UnitRows::new(h.clone()))).collect());
        let out = loss.forward(&LossInput {
            sets: &sets,
            ids: &ids,
            labels: Some(&labels),
            queue: Some(queue.matrix().view()),
            large_views: 2,
            ours: 0..batch,
            state: &state,
            epoch: 0,
        })?;
        for (name, dz) in out.grads {
            std::hint::black_box(sets.get(name)?.backward(0, dz));
        }
        state.commit(out.update);
        if index >= WARM_UP {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(LossReport {
        ms_median: 1e3 * median(times),
        cpu_ms: cpu.zip(cpu_seconds()).map(|(before, after)| 1e3 * (after - before) / repeats as f64),
        peak_rss_mb: peak_rss_mb(),
    })
}
