//! Is it learning, and when to stop? One sentence with its reasons, from what a run wrote down and what its encoder reaches.

use crate::train::{Metric, Verdict};

/// What the sentence is made of.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The lines of `metrics.jsonl`.
    pub metrics: Vec<Metric>,
    /// Values of an embedding that the loss contrasts.
    pub dimension: usize,
    /// Samples of a batch.
    pub batch: usize,
    /// Epochs of the whole run.
    pub epochs: usize,
    /// Whether it has come to its end.
    pub is_finished: bool,
    /// Shares of images whose nearest neighbours are of their class, by the untrained encoder and by this one.
    pub neighbours: Option<[f64; 2]>,
    /// Images of those shares.
    pub images: usize,
}

/// What to think of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Its encoder tells images apart better than at the start, and the objective falls.
    Learning,
    /// The same, and the objective stands still.
    Level,
    /// All embeddings are one.
    Collapsed,
    /// Training goes on and the encoder is no better than an untrained one.
    Useless,
    /// There is too little to go by.
    Early,
}

impl Judgement {
    /// The word that the sentence begins with.
    pub fn word(self) -> &'static str {
        match self {
            Self::Learning => "learning",
            Self::Level => "standing still",
            Self::Collapsed => "collapsed",
            Self::Useless => "not learning",
            Self::Early => "too early to tell",
        }
    }
}

/// How the objective went.
struct Course {
    /// Share of its whole fall that came in the last epoch; negative where it rose.
    last_epoch: Option<f64>,
    /// The learning rate has come down to nothing, so there is nothing left to fall for.
    is_annealed: bool,
}

impl Evidence {
    /// The judgement, and the sentence that gives its reasons.
    pub fn judge(&self) -> (Judgement, String) {
        let Some(last) = self.metrics.last() else {
            return (Judgement::Early, "too early to tell: training has not written a line of metrics yet".into());
        };
        let judgement = self.judgement(last);
        let reasons: Vec<String> = [self.neighbours_said(), self.signals_said(last), self.course_said()].concat();
        let advice = self.advice(judgement).map_or(String::new(), |advice| format!(": {advice}"));
        (judgement, format!("{}: {}{advice}", judgement.word(), reasons.join(", ")))
    }

    fn judgement(&self, last: &Metric) -> Judgement {
        // Two standard errors of the difference of two shares.
        let gain = self.neighbours.map(|[before, after]| {
            let variance = |p: f64| p * (1.0 - p) / self.images.max(1) as f64;
            (after - before, 2.0 * (variance(before) + variance(after)).sqrt())
        });
        match (last.verdict, gain) {
            (Verdict::Collapsed, _) => Judgement::Collapsed,
            (_, Some((gain, noise))) if gain <= noise && last.epoch >= 1.0 => Judgement::Useless,
            (Verdict::Plateau, _) => Judgement::Level,
            (Verdict::Early | Verdict::Falling, None) if last.epoch < 1.0 || self.is_by_chance() => Judgement::Early,
            (Verdict::Early | Verdict::Falling, _) => Judgement::Learning,
        }
    }

    /// Whether the two views of an image are hardly found more often than by chance, over the last tenth of the lines.
    fn is_by_chance(&self) -> bool {
        let last = &self.metrics[self.metrics.len() - self.metrics.len().div_ceil(10)..];
        let found: Vec<f64> = last.iter().filter_map(|metric| Some(metric.signals?.accuracy)).collect();
        let mean = found.iter().sum::<f64>() / found.len() as f64;
        !found.is_empty() && mean < 1.5 / self.batch.max(1) as f64
    }

    fn neighbours_said(&self) -> Vec<String> {
        let percent = |share: f64| (100.0 * share).round();
        let said = self.neighbours.map(|[before, after]| format!("kNN {} → {} %", percent(before), percent(after)));
        said.into_iter().collect()
    }

    fn signals_said(&self, last: &Metric) -> Vec<String> {
        let Some(signals) = last.signals else { return Vec::new() };
        let chance = 100.0 / self.batch.max(1) as f64;
        let accuracy = 100.0 * signals.accuracy;
        // A batch of b has no more than b directions.
        let most = self.dimension.min(self.batch);
        vec![
            format!("finds the other view of {accuracy:.0} % of a batch (chance {chance:.1} %)"),
            format!("rank {:.0} of {most}", signals.effective_rank),
        ]
    }

    fn course(&self) -> Option<Course> {
        let (first, last) = (self.metrics.first()?, self.metrics.last()?);
        let value = |metric: &Metric| metric.objective.unwrap_or(metric.loss);
        let mean = |from: f64, to: f64| {
            let inside = self.metrics.iter().filter(|metric| metric.epoch > from && metric.epoch <= to);
            let (count, sum) = inside.fold((0, 0.0), |(count, sum), metric| (count + 1, sum + value(metric)));
            (count > 0).then(|| sum / f64::from(count))
        };
        // Half an epoch about two moments that are one epoch apart.
        let end = last.epoch;
        let last_epoch = (end >= 2.0).then(|| {
            let fell = mean(end - 1.5, end - 1.0)? - mean(end - 0.5, end)?;
            let whole = value(first) - mean(end - 0.5, end)?;
            (whole > 0.0).then(|| fell / whole)
        });
        let highest = self.metrics.iter().map(|metric| metric.lr).fold(0.0, f64::max);
        Some(Course { last_epoch: last_epoch.flatten(), is_annealed: last.lr < 0.05 * highest })
    }

    fn course_said(&self) -> Vec<String> {
        let what = if self.metrics.iter().any(|metric| metric.objective.is_some()) { "objective" } else { "loss" };
        let Some(Course { last_epoch: Some(share), is_annealed }) = self.course() else { return Vec::new() };
        vec![match share {
            share if share >= 0.005 => {
                let still = if self.is_finished && !is_annealed { "still falling" } else { "falling" };
                format!("{what} {still} ({:.0} % of its whole fall in the last epoch)", (100.0 * share).max(1.0))
            }
            share if share <= -0.005 => format!("{what} rising"),
            _ if is_annealed => format!("{what} level, as at the end of a schedule"),
            _ => format!("{what} level"),
        }]
    }

    fn advice(&self, judgement: Judgement) -> Option<String> {
        let falls = self.course().and_then(|course| course.last_epoch).is_some_and(|share| share >= 0.005);
        match judgement {
            Judgement::Collapsed => Some("lower the learning rate or the weight decay".into()),
            Judgement::Useless => Some(
                "its encoder is no better than an untrained one; try another augmentation, \
                 temperature or learning rate before a longer run"
                    .into(),
            ),
            Judgement::Learning if self.is_finished && falls => Some(match self.epochs / 2 {
                0 | 1 => "more epochs may help".into(),
                half => format!("{half} more epochs may help"),
            }),
            Judgement::Level if self.is_finished => Some("more epochs of the same would change little".into()),
            Judgement::Level => Some("stop, or lower the learning rate, unless the schedule is near its end".into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Signals;

    fn line(step: usize, objective: f64, verdict: Verdict) -> Metric {
        let signals = Signals { accuracy: 0.5, alignment: 0.4, uniformity: -3.0, spread: 0.9, effective_rank: 45.2 };
        Metric {
            step,
            epoch: step as f64 / 10.0,
            loss: 7.0,
            objective: Some(objective),
            lr: 0.1,
            signals: Some(signals),
            verdict,
            images_per_s: 10.0,
            data_wait: 0.0,
            rank_wait: None,
        }
    }

    /// Ten lines an epoch; `objective` of the epoch.
    fn evidence(epochs: usize, verdict: Verdict, objective: impl Fn(f64) -> f64) -> Evidence {
        let metrics = (1..=10 * epochs).map(|step| line(step, objective(step as f64 / 10.0), verdict)).collect();
        Evidence { metrics, dimension: 128, batch: 64, epochs, is_finished: true, neighbours: None, images: 1000 }
    }

    #[test]
    fn a_run_that_learns_says_by_how_much_and_that_more_may_help() {
        let run = Evidence { neighbours: Some([0.41, 0.63]), ..evidence(10, Verdict::Falling, |epoch| -epoch) };
        let (judgement, said) = run.judge();
        assert_eq!(judgement, Judgement::Learning);
        let want = "learning: kNN 41 → 63 %, finds the other view of 50 % of a batch (chance 1.6 %), rank 45 of 64, \
                    objective still falling (10 % of its whole fall in the last epoch): 5 more epochs may help";
        assert_eq!(said, want);
    }

    #[test]
    fn a_plateau_is_no_failure_at_the_end_of_a_schedule() {
        let mut run = evidence(10, Verdict::Plateau, |epoch| -epoch.min(3.0));
        run.metrics.last_mut().unwrap().lr = 0.001;
        let (judgement, said) = run.judge();
        assert_eq!(judgement, Judgement::Level);
        assert!(
            said.ends_with("objective level, as at the end of a schedule: more epochs of the same would change little"),
            "{said}"
        );
    }

    #[test]
    fn an_encoder_no_better_than_an_untrained_one_is_not_learning_whatever_the_objective_says() {
        let falling = |shares| Evidence { neighbours: Some(shares), ..evidence(10, Verdict::Falling, |epoch| -epoch) };
        assert_eq!(falling([0.41, 0.43]).judge().0, Judgement::Useless, "within two standard errors");
        assert_eq!(falling([0.41, 0.30]).judge().0, Judgement::Useless);
        assert_eq!(falling([0.41, 0.46]).judge().0, Judgement::Learning);
        let collapsed = Evidence { neighbours: Some([0.4, 0.1]), ..evidence(9, Verdict::Collapsed, |_| 0.0) };
        assert!(collapsed.judge().1.starts_with("collapsed: kNN 40 → 10 %"));
    }

    #[test]
    fn nothing_is_said_of_a_run_that_has_not_begun() {
        let run = Evidence::default();
        assert_eq!(run.judge().0, Judgement::Early);
        let first = Evidence { metrics: vec![line(3, 1.0, Verdict::Falling)], ..run };
        assert_eq!(first.judge().0, Judgement::Early);
    }

    #[test]
    fn without_labels_views_must_be_found_more_often_than_by_chance() {
        let run = |batch| Evidence { batch, ..evidence(4, Verdict::Falling, |epoch| -epoch) };
        assert_eq!([2, 64].map(|batch| run(batch).judge().0), [Judgement::Early, Judgement::Learning], "found: half");
        let labelled = Evidence { neighbours: Some([0.4, 0.6]), ..run(2) };
        assert_eq!(labelled.judge().0, Judgement::Learning);
    }

    #[test]
    fn a_rise_and_a_method_without_an_objective_are_named() {
        let run = evidence(6, Verdict::Plateau, |epoch| if epoch < 4.0 { -epoch } else { epoch - 8.0 });
        assert!(run.judge().1.contains("objective rising"), "{}", run.judge().1);
        let mut run = evidence(6, Verdict::Falling, |_| 0.0);
        for (at, metric) in run.metrics.iter_mut().enumerate() {
            (metric.objective, metric.loss) = (None, -(at as f64));
        }
        assert!(run.judge().1.contains("loss still falling"), "{}", run.judge().1);
    }
}
