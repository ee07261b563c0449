//! Per-sample state: named columns indexed by sample id, NaN where a sample has never been seen.
//! SogCLR keeps `log_u`; other methods add their own columns. Losses read it and return a [`StateUpdate`];
//! only the training step commits one.

use std::collections::BTreeMap;

/// The moving average u of eq. (9), stored as ln u.
pub const LOG_U: &str = "log_u";

/// iSogCLR's temperature τ_i of a sample.
pub const TAU: &str = "tau";
/// The moving average of ∂F/∂τ_i, v_i of iSogCLR.
pub const TAU_GRAD: &str = "tau_grad";

/// u of the texts of image–text pairs, stored as ln u.
pub const LOG_U_TEXT: &str = "log_u_text";
/// iSogCLR's temperature of a text.
pub const TAU_TEXT: &str = "tau_text";
/// The moving average of ∂F/∂τ of a text.
pub const TAU_GRAD_TEXT: &str = "tau_grad_text";

/// Columns of one value per training sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleState {
    samples: usize,
    columns: BTreeMap<String, Vec<f32>>,
}

/// New values of some columns for the samples of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateUpdate {
    /// The samples of the batch. `[B]`
    pub ids: Vec<usize>,
    /// Name and new values `[B]` of each column.
    pub columns: Vec<(&'static str, Vec<f32>)>,
}

impl SampleState {
    /// `columns` of `samples` values, none of them seen.
    pub fn new(samples: usize, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&name| (name.to_owned(), vec![f32::NAN; samples])).collect();
        Self { samples, columns }
    }

    /// Restores columns read from a checkpoint.
    pub fn from_columns(samples: usize, columns: BTreeMap<String, Vec<f32>>) -> Self {
        debug_assert!(columns.values().all(|c| c.len() == samples));
        Self { samples, columns }
    }

    /// Number of training samples.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Name and values `[samples]` of each column, in the order of names.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &[f32])> {
        self.columns.iter().map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// The column `name`.
    ///
    /// # Panics
    /// If the state was made without it, which is a programming error.
    pub fn column(&self, name: &str) -> &[f32] {
        self.columns.get(name).unwrap_or_else(|| panic!("sample state has no column {name}"))
    }

    /// The value of `name` for sample `id`, `None` before its first visit.
    pub fn seen(&self, name: &str, id: usize) -> Option<f64> {
        let value = self.column(name)[id];
        (!value.is_nan()).then_some(f64::from(value))
    }

    /// Writes one step's new values.
    pub fn commit(&mut self, update: StateUpdate) {
        for (name, values) in update.columns {
            let column = self.columns.get_mut(name).unwrap_or_else(|| panic!("sample state has no column {name}"));
            for (&id, value) in update.ids.iter().zip(values) {
                column[id] = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_touches_only_the_named_samples() {
        let mut state = SampleState::new(4, &[LOG_U]);
        state.commit(StateUpdate { ids: vec![2, 0], columns: vec![(LOG_U, vec![1.5, -3.0])] });
        assert_eq!(state.seen(LOG_U, 0), Some(-3.0));
        assert_eq!(state.seen(LOG_U, 1), None);
        assert_eq!(state.seen(LOG_U, 2), Some(1.5));
    }
}
