//! Progress: a bar on a terminal, plain lines elsewhere. All on standard error.

use crate::output::{is_quiet, is_verbose, note};
use crate::summary::thousands;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sogclr::train::StepReport;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Seconds between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Counts what is done: a bar on a terminal, elsewhere a line now and then.
pub struct Counter {
    bar: ProgressBar,
    what: String,
    /// When the last line was written; `None` on a terminal.
    last_line: Option<Mutex<Instant>>,
}

impl Counter {
    pub fn new(what: &str, total: usize) -> Self {
        Self::titled(what.to_owned(), format!("{what}: {total}"), total)
    }

    /// `computing features of 2,936 images`
    pub fn images(doing: &str, total: usize) -> Self {
        let title = format!("{doing} {} images", thousands(total));
        Self::titled(title.clone(), title, total)
    }

    fn titled(what: String, title: String, total: usize) -> Self {
        let target = if is_quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total as u64), target);
        let style =
            ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {per_sec} {eta}").expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what.clone());
        let is_plain = !std::io::stderr().is_terminal();
        if is_plain {
            note!("{title}");
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

/// Progress of training: epoch, time left, speed and verdict; with --verbose all signals.
pub struct TrainProgress {
    bar: Option<ProgressBar>,
    label: String,
    /// When the first step of this process was done, and which it was: it sets up memory and counts for nothing.
    settled: Option<(Instant, usize)>,
    last_line: Option<Instant>,
    /// Exponential means over recent steps: seconds, and the shares of waiting for data and for other ranks.
    recent: Option<[f64; 3]>,
    /// Held until the first step is done.
    first: Option<Sender<()>>,
}

/// Waiting for data that is worth a word.
const LONG_WAIT: f64 = 0.1;

impl TrainProgress {
    pub fn new(label: &str, total_steps: usize, first_step: usize) -> Self {
        let is_shown = std::io::stderr().is_terminal() && !is_quiet();
        let bar = is_shown.then(|| {
            let bar = ProgressBar::new(total_steps as u64).with_position(first_step as u64);
            let style = ProgressStyle::with_template("{prefix} {wide_msg}").expect("a valid template");
            bar.set_style(style);
            bar.set_prefix(label.to_owned());
            bar.set_message(FIRST_STEP);
            bar
        });
        let first = bar.is_none().then(|| speak_up(label.to_owned()));
        Self { bar, label: label.to_owned(), settled: None, last_line: None, recent: None, first }
    }

    pub fn step(&mut self, report: &StepReport) {
        drop(self.first.take());
        if self.settled.is_none() {
            self.settled = Some((Instant::now(), report.step));
        } else {
            let seconds = report.spent.elapsed.as_secs_f64().max(1e-9);
            let share = |time: Duration| time.as_secs_f64() / seconds;
            let new = [seconds, share(report.spent.waited), share(report.spent.exchanged.unwrap_or_default())];
            let blend = |old: [f64; 3]| std::array::from_fn(|of| 0.95 * old[of] + 0.05 * new[of]);
            self.recent = Some(self.recent.map_or(new, blend));
        }
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
        let decimals = if epochs < 100 { 1 } else { 0 };
        let mut parts = vec![format!("epoch {epoch:.decimals$}/{epochs}")];
        let mut wait_told = None;
        if let (Some((since, first)), Some([seconds, wait, _])) = (self.settled, self.recent) {
            let per_step = since.elapsed().as_secs_f64() / (report.step - first).max(1) as f64;
            let left = Duration::from_secs_f64(per_step * (report.total_steps - report.step) as f64);
            parts.push(format!("{} left", duration(left)));
            parts.push(format!("{:.0} images/s", report.batch as f64 / seconds));
            if wait >= LONG_WAIT || is_verbose() {
                wait_told = Some(format!("data wait {:.0}%", 100.0 * wait));
            }
        }
        if report.signals.is_some() {
            parts.push(report.verdict.to_string());
        }
        // The line fits a terminal; what matters less gives way.
        let has_room =
            |wait: &String| is_verbose() || columns(&self.label, &parts) + 3 + wait.chars().count() <= COLUMNS;
        parts.extend(wait_told.filter(has_room));
        if is_verbose() {
            parts.extend(self.details(report));
        }
        parts.join(" · ")
    }

    fn details(&self, report: &StepReport) -> Vec<String> {
        let mut parts = vec![format!("step {}/{}", report.step, report.total_steps)];
        let exchange = self.recent.map_or(0.0, |recent| recent[2]);
        parts.extend(report.spent.exchanged.map(|_| format!("rank wait {:.0}%", 100.0 * exchange)));
        parts.push(format!("loss {:.4}", report.loss));
        parts.extend(report.objective.map(|objective| format!("objective {objective:.4}")));
        if let Some(signals) = report.signals {
            parts.push(format!("accuracy {:.0}%", 100.0 * signals.accuracy));
            parts.push(format!("alignment {:.2}", signals.alignment));
            parts.push(format!("uniformity {:.1}", signals.uniformity));
            parts.push(format!("spread {:.2}", signals.spread));
            parts.push(format!("rank {:.0}", signals.effective_rank));
        }
        parts
    }
}

/// Of a narrow terminal.
const COLUMNS: usize = 80;

fn columns(label: &str, parts: &[String]) -> usize {
    label.chars().count() + 1 + parts.join(" · ").chars().count()
}

const FIRST_STEP: &str = "first step: making views, setting up memory";

/// Says what a slow first step is about, unless the sender that it gives is dropped before.
fn speak_up(label: String) -> Sender<()> {
    let (sender, done) = channel();
    std::thread::spawn(move || {
        if done.recv_timeout(LINE_EVERY) == Err(RecvTimeoutError::Timeout) {
            note!("{label} {FIRST_STEP}");
        }
    });
    sender
}

/// 3:07 or 2:03:07.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sogclr::train::{Signals, Spent, Verdict};

    fn report(step: usize, seconds: u64) -> StepReport {
        let spent = Spent { elapsed: Duration::from_secs(seconds), waited: Duration::ZERO, exchanged: None };
        let signals = Signals { accuracy: 0.5, alignment: 0.5, uniformity: -2.0, spread: 0.9, effective_rank: 20.0 };
        StepReport {
            step,
            total_steps: 100_000,
            steps_per_epoch: 100,
            batch: 64,
            loss: 1.0,
            objective: None,
            spent,
            signals: Some(signals),
            verdict: Verdict::Falling,
        }
    }

    #[test]
    fn the_line_fits_a_terminal_and_leaves_the_first_step_out() {
        let mut progress = TrainProgress::new("training", 100_000, 0);
        progress.step(&report(1, 100));
        assert!(!progress.text(&report(1, 100)).contains("images/s"));
        progress.step(&report(2, 2));
        let text = progress.text(&report(99_900, 2));
        assert!(text.contains("32 images/s") && text.contains("objective falling"), "{text}");
        assert!("training ".len() + text.chars().count() <= 80, "{text}");
    }
}
