//! Which part of a global batch a rank holds.

use crate::check::Problem;
use crate::comm::Group;
use crate::math::Matrix;
use std::ops::Range;

/// The places of a rank in every batch.
///
/// What goes through the network at once in one process, `unit` samples (a group of batch norm, or a micro-batch), is dealt
/// evenly to the ranks: rank r of K holds the places `u·unit + r·unit/K ..` of every unit u. So every rank takes part in
/// every statistic of batch norm, and the result does not depend on K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    batch: usize,
    unit: usize,
    rank: usize,
    ranks: usize,
}

impl Share {
    /// All places of a batch: one process.
    pub fn whole(batch: usize) -> Self {
        Self { batch, unit: batch, rank: 0, ranks: 1 }
    }

    /// The places of this rank, where batch norm sees `groups` groups and `micro_batch` samples go through the network at
    /// once; or why the batch cannot be dealt to so many ranks.
    pub fn of(group: &Group, batch: usize, groups: usize, micro_batch: Option<usize>) -> Result<Self, Problem> {
        let ranks = group.size();
        if ranks == 1 {
            return Ok(Self::whole(batch));
        }
        let chunk = micro_batch.unwrap_or(batch).min(batch);
        let unit = (batch / groups).min(chunk);
        let problem = |key: &'static str, what: String| Err(Problem::new(key, what));
        if !batch.is_multiple_of(ranks) {
            let near = (batch / ranks).max(1) * ranks;
            return problem("train.batch", format!("is {batch}, which {ranks} processes cannot share: try {near}"));
        }
        if !chunk.is_multiple_of(unit) || !batch.is_multiple_of(chunk) {
            let what = format!("is {chunk}; with several processes it has to divide the batch of {batch} evenly");
            return problem("train.micro_batch", what);
        }
        if !unit.is_multiple_of(ranks) {
            let key = if groups > 1 && unit < chunk { "method.norm_groups" } else { "train.micro_batch" };
            let what = format!("lets batch norm see {unit} samples at once, which {ranks} processes cannot share");
            return problem(key, what);
        }
        Ok(Self { batch, unit, rank: group.rank(), ranks })
    }

    /// Samples of this rank.
    pub fn len(&self) -> usize {
        self.batch / self.ranks
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples of a rank of each `all` that go through the network at once.
    pub fn of_chunk(&self, all: usize) -> usize {
        all.min(self.batch) / self.ranks
    }

    /// The places in the batch, in the order of this rank's rows.
    pub fn places(&self) -> Vec<usize> {
        self.places_of(self.rank).collect()
    }

    fn places_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        let (unit, part) = (self.unit, self.unit / self.ranks);
        (0..self.len()).map(move |row| row / part * unit + rank * part + row % part)
    }

    /// The places as one range, where they are one.
    pub fn range(&self) -> Option<Range<usize>> {
        (self.unit == self.batch).then(|| self.rank * self.len()..(self.rank + 1) * self.len())
    }

    /// The rows of all ranks in the order of the batch, from those of this rank.
    pub fn gather(&self, group: &Group, rows: Matrix) -> Matrix {
        let all = group.gather(rows);
        if self.unit == self.batch {
            return all; // rank after rank is the order of the batch
        }
        let mut ordered = Matrix::zeros(all.dim());
        let places = (0..self.ranks).flat_map(|rank| self.places_of(rank));
        for (place, row) in places.zip(all.outer_iter()) {
            ordered.row_mut(place).assign(&row);
        }
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::threads;
    use ndarray::Array;

    #[test]
    fn every_unit_is_dealt_to_all_ranks_and_comes_back_in_order() {
        // 12 places, batch norm over 2 groups, 3 ranks: units of 6, 2 of each for a rank
        let places: Vec<_> = threads(3).iter().map(|g| Share::of(g, 12, 2, None).unwrap().places()).collect();
        assert_eq!(places, [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]);
        let whole = Array::from_shape_fn((12, 2), |(row, column)| (10 * row + column) as f32);
        std::thread::scope(|scope| {
            for group in threads(3) {
                let whole = &whole;
                scope.spawn(move || {
                    for (groups, micro) in [(2, None), (1, None), (1, Some(6)), (4, Some(12)), (2, Some(3))] {
                        let share = Share::of(&group, 12, groups, micro).unwrap();
                        let ours = whole.select(ndarray::Axis(0), &share.places());
                        assert_eq!(share.gather(&group, ours), whole);
                        assert_eq!(share.range().is_some(), (groups, micro) == (1, None));
                    }
                });
            }
        });
    }

    #[test]
    fn what_cannot_be_dealt_evenly_is_refused_with_the_setting() {
        let group = &threads(4)[0];
        let refused = |batch, groups, micro| Share::of(group, batch, groups, micro).unwrap_err().to_string();
        assert_eq!(refused(30, 1, None), "train.batch is 30, which 4 processes cannot share: try 28");
        assert!(refused(32, 1, Some(24)).starts_with("train.micro_batch is 24; with several processes"));
        assert!(refused(32, 1, Some(2)).starts_with("train.micro_batch lets batch norm see 2 samples at once"));
        assert!(refused(32, 16, None).starts_with("method.norm_groups lets batch norm see 2 samples at once"));
        assert_eq!(Share::of(&Group::solo(), 30, 4, Some(7)), Ok(Share::whole(30)), "one process shares with nobody");
    }
}
