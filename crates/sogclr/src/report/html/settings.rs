//! Configuration, data, hardware and time.

use crate::report::RunReport;
use crate::system::processor;
use askama::Template;

#[derive(Template)]
#[template(path = "report/settings.html")]
pub(super) struct Settings {
    facts: Vec<(&'static str, String)>,
    config: String,
}

impl Settings {
    pub fn of(run: &RunReport) -> Self {
        let RunReport { config, summary, .. } = run;
        let place = [&config.data.path, &config.data.pairs].into_iter().flatten().next();
        let data = place.map_or_else(|| "embedded or the program's own".into(), |path| path.display().to_string());
        let mut facts = vec![
            ("data", data),
            ("training images", run.samples.to_string()),
            ("method", config.method.name().to_owned()),
            ("encoder", format!("{}, {} features", config.encoder.name(), config.encoder.feature_dim())),
            ("batch", config.train.batch.to_string()),
            ("epochs", config.train.epochs.to_string()),
        ];
        if let Some(classes) = run.looked.as_ref().map(|looked| looked.classes.len()).filter(|&count| count > 0) {
            facts.push(("classes", classes.to_string()));
        }
        if let Some(done) = summary {
            facts.push(("training time", time(done.seconds)));
            facts.push(("speed", format!("{:.0} images/s", done.images_per_s)));
            facts.extend(done.peak_rss_mb.map(|mb| ("peak memory", format!("{mb:.0} MB"))));
            facts.extend(
                done.provenance.as_ref().map(|by| ("program", format!("{}, numerics {}", by.program, by.numerics))),
            );
        } else if let Some(last) = run.metrics.last() {
            facts.push(("so far", format!("epoch {:.1} of {}", last.epoch, config.train.epochs)));
        }
        facts.push(("this report made on", format!("{}, {} threads", processor(), rayon::current_num_threads())));
        Self { facts, config: config.to_toml() }
    }
}

/// 1 h 02 min, or 3 min 05 s.
pub(super) fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_read_at_a_glance() {
        assert_eq!([4.4, 185.0, 3720.0].map(super::time), ["4 s", "3 min 05 s", "1 h 02 min"]);
    }
}
