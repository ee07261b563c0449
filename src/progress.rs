//! Progress: a bar on a terminal, plain lines elsewhere. All on standard error.

use crate::output::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sogclr::train::{StepReport, Verdict};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Seconds between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Counts what is done: a bar on a terminal, elsewhere a line now and then.
pub struct Counter {
    bar: ProgressBar,
    what: &'static str,
    /// When the last line was written; `None` on a terminal.
    last_line: Option<Mutex<Instant>>,
}

impl Counter {
    pub fn new(what: &'static str, total: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {per_sec} {eta}").expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        let is_plain = !std::io::stderr().is_terminal();
        if is_plain {
            note!("{what}: {total}");
        }
        Self { bar, what, last_line: is_plain.then(|| Mutex::new(Instant::now())) }
    }

    pub fn inc(&self, count: usize) {
        self.bar.inc(count as u64);
        let Some(last_line) = &self.last_line else { return };
        let mut last_line = last_line.lock().expect("no thread panics while it writes");
        if last_line.elapsed() >= LINE_EVERY {
            *last_line = Instant::now();
            let (done, total) = (self.bar.position(), self.bar.length().unwrap_or_default());
            let left = self.bar.elapsed().mul_f64(total.saturating_sub(done) as f64 / done as f64);
            let rate = done as f64 / self.bar.elapsed().as_secs_f64();
            note!("{} {done}/{total} · {rate:.0}/s · {} left", self.what, duration(left));
        }
    }
}

/// The bar is gone once the work is done.
impl Drop for Counter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of training.
pub struct TrainProgress {
    bar: Option<ProgressBar>,
    label: String,
    began: Instant,
    first_step: usize,
    last_line: Option<Instant>,
    /// Exponential means over recent steps: seconds, and the shares of waiting for data and for other ranks.
    recent: Option<[f64; 3]>,
}

impl TrainProgress {
    pub fn new(label: &str, total_steps: usize, first_step: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total_steps as u64).with_position(first_step as u64);
            let style = ProgressStyle::with_template("{prefix} [{bar:24}] {wide_msg}").expect("a valid template");
            bar.set_style(style.progress_chars("=> "));
            bar.set_prefix(label.to_owned());
            bar
        });
        let now = Instant::now();
        Self { bar, label: label.to_owned(), began: now, first_step, last_line: None, recent: None }
    }

    pub fn step(&mut self, report: &StepReport) {
        let seconds = report.spent.elapsed.as_secs_f64().max(1e-9);
        let share = |time: Duration| time.as_secs_f64() / seconds;
        let new = [seconds, share(report.spent.waited), share(report.spent.exchanged.unwrap_or_default())];
        let blend = |old: [f64; 3]| std::array::from_fn(|of| 0.95 * old[of] + 0.05 * new[of]);
        self.recent = Some(self.recent.map_or(new, blend));
        let finished = report.step == report.total_steps;
        if let Some(bar) = &self.bar {
            bar.set_position(report.step as u64);
            bar.set_message(self.text(report));
            if finished {
                bar.finish();
            }
        } else if finished || self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            note!("{} {}", self.label, self.text(report));
            self.last_line = Some(Instant::now());
        }
    }

    fn text(&self, report: &StepReport) -> String {
        let epochs = report.total_steps / report.steps_per_epoch;
        let epoch = report.step as f64 / report.steps_per_epoch as f64;
        let done = (report.step - self.first_step).max(1) as f64;
        let per_step = self.began.elapsed().as_secs_f64() / done;
        let left = Duration::from_secs_f64(per_step * (report.total_steps - report.step) as f64);
        let [seconds, wait, exchange] = self.recent.unwrap_or([1.0, 0.0, 0.0]);
        let exchange =
            report.spent.exchanged.map_or(String::new(), |_| format!(" · rank wait {:.0}%", 100.0 * exchange));
        let speed = report.batch as f64 / seconds;
        let signals = report.signals.map_or(String::new(), |signals| {
            let verdict = match report.verdict {
                Verdict::Learning => "learning",
                Verdict::Collapsed => "COLLAPSED",
                Verdict::Plateau => "plateau",
            };
            format!(
                " · accuracy {:.0}% · alignment {:.2} · uniformity {:.1} · spread {:.2} · rank {:.0} · {verdict}",
                100.0 * signals.accuracy,
                signals.alignment,
                signals.uniformity,
                signals.spread,
                signals.effective_rank
            )
        });
        let objective = report.objective.map_or(String::new(), |objective| format!(" · objective {objective:.4}"));
        format!(
            "epoch {epoch:.1}/{epochs} step {}/{} · {speed:.0} images/s · data wait {:.0}%{exchange} · loss {:.4}{objective}{signals} · {} left",
            report.step,
            report.total_steps,
            100.0 * wait,
            report.loss,
            duration(left)
        )
    }
}

/// 3:07 or 2:03:07.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}
