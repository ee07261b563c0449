//! A report as one HTML page that needs no network. Each section is a file here and a template in `templates/report`, which
//! escapes what it is given.
//!
//! Adding a section: a file with a struct that derives `Template`, its template, and one line in [`RunSections::of`].

mod chart;
mod confusion;
mod curves;
mod map;
mod pictures;
mod settings;

use super::RunReport;
use crate::report::verdict::Judgement;
use askama::Template;
use settings::time;

/// Whether the page is one that looks for news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// A file.
    None,
    /// Served by a program that knows more from time to time.
    Live,
}

#[derive(Template)]
#[template(path = "report/page.html")]
struct Page {
    title: String,
    is_live: bool,
    verdicts: Vec<Verdict>,
    table: Vec<Summary>,
    curves: String,
    runs: Vec<RunSections>,
}

struct Verdict {
    name: Option<String>,
    kind: &'static str,
    sentence: String,
}

/// A run's row among several.
struct Summary {
    name: String,
    colour: usize,
    method: String,
    epochs: String,
    rank: String,
    knn: String,
    time: String,
}

struct RunSections {
    name: String,
    problem: Option<String>,
    sections: Vec<String>,
}

impl RunSections {
    fn of(run: &RunReport) -> Self {
        let mut sections: Vec<String> = Vec::new();
        if let Some(looked) = &run.looked {
            sections.extend(pictures::views(looked).as_ref().map(html));
            sections.extend(pictures::neighbours(looked).as_ref().map(html));
            sections.extend(map::map(looked).as_ref().map(html));
            sections.extend(pictures::extremes(looked).iter().map(html));
            sections.extend(confusion::confusion(looked).as_ref().map(html));
        }
        sections.push(html(&settings::Settings::of(run)));
        Self { name: run.name.clone(), problem: run.problem.clone(), sections }
    }
}

fn html(template: &impl Template) -> String {
    template.render().expect("templates are checked when they are compiled, and strings take everything")
}

/// The page of one or more runs.
pub fn page(runs: &[RunReport], updates: Updates) -> String {
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let verdict = |run: &RunReport| {
        let (judgement, sentence) = run.judge();
        let kind = match judgement {
            Judgement::Learning => "good",
            Judgement::Level | Judgement::Early => "neutral",
            Judgement::Collapsed | Judgement::Useless => "bad",
        };
        Verdict { name: (runs.len() > 1).then(|| run.name.clone()), kind, sentence }
    };
    html(&Page {
        title: names.join(", "),
        is_live: updates == Updates::Live,
        verdicts: runs.iter().map(verdict).collect(),
        table: if runs.len() > 1 { runs.iter().enumerate().map(summary).collect() } else { Vec::new() },
        curves: html(&curves::Curves::of(runs)),
        runs: runs.iter().map(RunSections::of).collect(),
    })
}

fn summary((colour, run): (usize, &RunReport)) -> Summary {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    let last = run.metrics.last();
    let votes = run.looked.as_ref().and_then(|looked| looked.votes.as_ref());
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    Summary {
        name: run.name.clone(),
        colour: colour % 8,
        method: run.config.method.name().to_owned(),
        epochs: or_dash(last.map(|last| format!("{:.1} of {}", last.epoch, run.config.train.epochs))),
        rank: or_dash(last.and_then(|last| last.signals).map(|signals| format!("{:.0}", signals.effective_rank))),
        knn: or_dash(votes.map(|votes| format!("{} → {}", percent(votes.shares[0]), percent(votes.shares[1])))),
        time: or_dash(run.summary.as_ref().map(|done| time(done.seconds))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, RunConfig};
    use crate::math::{Matrix, UnitRows};
    use crate::report::looked::{Extremes, Looked, Shown, Viewed, Votes};
    use image::RgbImage;

    const EVIL: &str = "</script><img src=x onerror=alert(1)>\"'";

    fn shown(class: u32) -> Shown {
        let picture = RgbImage::from_pixel(4, 4, image::Rgb([9; 3]));
        Shown { name: EVIL.into(), class: Some(class), caption: None, picture }
    }

    fn looked() -> Looked {
        Looked {
            images: (0..4).map(|k| shown(k % 2)).collect(),
            features: UnitRows::new(Matrix::from_shape_fn((4, 3), |(row, column)| (row * column) as f32 + 1.0)),
            classes: vec![EVIL.into(), "other".into()],
            votes: Some(Votes { shares: [0.25, 0.75], confusion: vec![vec![1, 1], vec![0, 2]] }),
            viewed: vec![Viewed { original: shown(0), views: vec![RgbImage::new(2, 2)] }],
            extremes: Some(Extremes { crowded: vec![(shown(0), 1.5)], isolated: vec![(shown(1), -2.5)], seen: 4 }),
            samples: 9,
        }
    }

    fn run(name: &str) -> RunReport {
        let (config, _) = RunConfig::open(&Overrides::default()).unwrap();
        let evaluations = Vec::new();
        let (metrics, summary, problem) = (Vec::new(), None, None);
        RunReport {
            name: name.into(),
            config,
            metrics,
            summary,
            evaluations,
            samples: 9,
            looked: Some(looked()),
            problem,
        }
    }

    #[test]
    fn what_users_named_stays_text() {
        let page = page(&[run(EVIL), run("other")], Updates::None);
        assert!(!page.contains("<img src=x"), "in the page or in its data");
        assert_eq!(page.matches("</script>").count(), 3, "of the two maps and of the page");
        assert!(page.contains("u003c/script"), "the names of the map");
    }

    #[test]
    fn a_page_asks_no_network_and_a_live_one_its_own_server() {
        let [file, live] = [Updates::None, Updates::Live].map(|updates| page(&[run("a")], updates));
        assert!(file.contains("default-src 'none'") && !file.contains("connect-src") && !file.contains("data-live>"));
        assert!(live.contains("connect-src 'self'") && live.contains("<body data-live>"));
        assert!(!file.contains("http://") && !file.contains("https://"));
    }

    #[test]
    fn every_section_has_a_place_and_the_verdict_is_the_first_line() {
        let page = page(&[run("a")], Updates::None);
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
        let places = [
            "too early to tell",
            ">Curves<",
            ">What the encoder sees<",
            ">Nearest neighbours<",
            ">Map<",
            ">Most crowded<",
            ">Most isolated<",
            ">Classes<",
            ">Settings<",
        ];
        assert!(places.map(place).is_sorted());
        assert!(page.contains("ln u 1.50") && page.contains("ln u -2.50") && page.contains("75 % are right, 25 %"));
        assert!(!page.contains("Side by side"), "of one run");
    }
}
