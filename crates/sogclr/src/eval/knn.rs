//! Weighted k-nearest-neighbour vote: cosine similarity s, weight exp(s/0.07).

use super::{Accuracy, Labelled};
use crate::math::Isa;
use crate::math::{UnitRows, map_rows};

const TEMPERATURE: f64 = 0.07;

/// The vote of the `k` nearest training features for each class. `[queries][classes]`
pub fn knn_scores(train: &Labelled, queries: &crate::math::Matrix, classes: usize, k: usize) -> Vec<Vec<f64>> {
    let keys = UnitRows::new(train.features.clone());
    let queries = UnitRows::new(queries.clone());
    map_rows(Isa::best(), queries.matrix().view(), keys.matrix().view(), |_, s| {
        votes(s.as_slice().expect("a row"), (0..s.len()).collect(), &train.labels, classes, k)
    })
}

/// For each image the class that the `k` nearest of the others vote for.
pub fn knn_among(images: &Labelled, classes: usize, k: usize) -> Vec<u32> {
    let rows = UnitRows::new(images.features.clone());
    map_rows(Isa::best(), rows.matrix().view(), rows.matrix().view(), |own, s| {
        let others = (0..s.len()).filter(|&row| row != own).collect();
        let votes = votes(s.as_slice().expect("a row"), others, &images.labels, classes, k);
        let best = (0..classes).max_by(|&a, &b| votes[a].total_cmp(&votes[b]).then(b.cmp(&a)));
        best.unwrap_or_default() as u32
    })
}

/// The vote of the `k` rows of `order` with the largest similarities `s`.
fn votes(s: &[f32], mut order: Vec<usize>, labels: &[u32], classes: usize, k: usize) -> Vec<f64> {
    let k = k.min(order.len());
    let by_similarity = |&a: &usize, &b: &usize| s[b].total_cmp(&s[a]).then(a.cmp(&b));
    order.select_nth_unstable_by(k - 1, by_similarity);
    order[..k].sort_unstable_by(by_similarity);
    let mut votes = vec![0.0; classes];
    for &row in &order[..k] {
        votes[labels[row] as usize] += (f64::from(s[row]) / TEMPERATURE).exp();
    }
    votes
}

/// Accuracy of the vote on labelled test features.
pub fn knn_accuracy(train: &Labelled, test: &Labelled, classes: usize, k: usize) -> Accuracy {
    let scores = knn_scores(train, &test.features, classes, k);
    Accuracy::from_scores(scores.iter().map(Vec::as_slice), &test.labels)
}
