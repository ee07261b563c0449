//! A loss alone: from raw embeddings to the gradient of each, on random embeddings.

use super::{peak_rss_mb, time};
use crate::loss::{EmbeddingSets, Loss, LossError, LossInput, SetName};
use crate::math::{Matrix, SampleRng, UnitRows};
use crate::state::SampleState;
use serde::Serialize;

/// Rows of the queue, for losses that look at one.
const QUEUE: usize = 4096;
const CLASSES: u32 = 10;
/// Evaluations that are not counted.
const WARM_UP: usize = 2;

/// Medians over the evaluations.
#[derive(Clone, Debug, Serialize)]
pub struct LossSpeed {
    /// Milliseconds of one evaluation with its gradients.
    pub ms_median: f64,
    /// `null` where the system does not tell.
    pub cpu_ms: Option<f64>,
    /// Most memory of the process at once in MiB; `null` where the system does not tell.
    pub peak_rss_mb: Option<f64>,
}

/// Evaluates `loss` on a batch of `batch` samples with embeddings of `dim` values.
pub fn measure_loss(loss: &dyn Loss, batch: usize, dim: usize, repeats: usize) -> Result<LossSpeed, LossError> {
    let mut rng = SampleRng::weights(0, "bench");
    let mut random = |rows: usize| Matrix::from_shape_fn((rows, dim), |_| rng.normal());
    let names = [
        SetName::View(0),
        SetName::View(1),
        SetName::Key(0),
        SetName::Key(1),
        SetName::Predictor(0),
        SetName::Predictor(1),
    ];
    let raw: Vec<(SetName, Matrix)> =
        names.into_iter().chain([SetName::Jigsaw, SetName::Text]).map(|name| (name, random(batch))).collect();
    let queue = UnitRows::new(random(QUEUE));
    let ids: Vec<usize> = (0..batch).collect();
    let labels: Vec<u32> = (0..batch as u32).map(|id| id % CLASSES).collect();
    let mut state = SampleState::new(batch, loss.columns());
    let timing = time(WARM_UP, repeats, |_| {
        let sets = EmbeddingSets::new(raw.clone());
        let out = loss.forward(&LossInput {
            labels: Some(&labels),
            queue: Some(queue.matrix().view()),
            ..LossInput::new(&sets, &ids, &state)
        })?;
        std::hint::black_box(&out.grads);
        state.commit(out.update);
        Ok::<(), LossError>(())
    })?;
    Ok(LossSpeed {
        ms_median: 1e3 * timing.seconds,
        cpu_ms: timing.cpu_seconds.map(|seconds| 1e3 * seconds),
        peak_rss_mb: peak_rss_mb(),
    })
}
