//! Lines over epochs as inline SVG, which needs no script; a script adds a pointer that reads values off.

use askama::Template;

/// Width and height of the drawing, and what is left for labels at the left and below.
const SIZE: (f64, f64) = (340.0, 190.0);
const MARGIN: (f64, f64) = (46.0, 24.0);
/// Points of a line at most: more are not seen.
const POINTS: usize = 240;

/// One line: (epoch, value), in order.
pub struct Line {
    /// What it belongs to.
    pub name: String,
    /// Number of its colour.
    pub colour: usize,
    /// In order of epochs.
    pub points: Vec<(f64, f64)>,
    /// Whether its points are few, and shown.
    pub has_dots: bool,
}

/// Lines that share their axes.
#[derive(Template)]
#[template(path = "report/chart.html")]
pub struct Chart {
    title: String,
    explanation: String,
    width: f64,
    height: f64,
    left: f64,
    bottom: f64,
    across: Vec<Tick>,
    up: Vec<Tick>,
    lines: Vec<Drawn>,
}

struct Tick {
    at: f64,
    label: String,
}

struct Drawn {
    name: String,
    colour: usize,
    path: String,
    dots: Vec<(f64, f64)>,
    /// For the script: values and where they stand.
    data: String,
}

impl Chart {
    /// `None` where no line has a point.
    pub fn new(title: &str, explanation: &str, lines: Vec<Line>) -> Option<Self> {
        let lines: Vec<Line> = lines.into_iter().map(|line| Line { points: thinned(line.points), ..line }).collect();
        let all = || lines.iter().flat_map(|line| &line.points);
        all().next()?;
        let (low, high) = bounds(all().map(|point| point.1));
        let last = all().map(|point| point.0).fold(0.0, f64::max).max(1e-9);
        let (left, bottom) = (MARGIN.0, SIZE.1 - MARGIN.1);
        let x = |epoch: f64| left + epoch / last * (SIZE.0 - left - 8.0);
        let y = |value: f64| bottom - (value - low) / (high - low) * (bottom - 8.0);
        let drawn = lines.iter().map(|line| {
            let places: Vec<(f64, f64)> =
                line.points.iter().map(|&(epoch, value)| (round(x(epoch)), round(y(value)))).collect();
            let data: Vec<String> = line.points.iter().map(|(e, v)| format!("{} {}", short(*e), short(*v))).collect();
            Drawn {
                name: line.name.clone(),
                colour: line.colour % 8,
                path: places.iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" "),
                dots: if line.has_dots || places.len() == 1 { places } else { Vec::new() },
                data: data.join(","),
            }
        });
        let tick = |value: f64, at: f64| Tick { at: round(at), label: short(value) };
        Some(Self {
            title: title.into(),
            explanation: explanation.into(),
            width: SIZE.0,
            height: SIZE.1,
            left,
            bottom,
            across: [0.0, last / 2.0, last].map(|epoch| tick(epoch, x(epoch))).into(),
            up: [low, (low + high) / 2.0, high].map(|value| tick(value, y(value))).into(),
            lines: drawn.collect(),
        })
    }
}

/// Means of neighbours where there are more points than are seen; the last one as it is.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let each = finite.len().div_ceil(POINTS).max(1);
    let mean = |chunk: &[(f64, f64)]| {
        let count = chunk.len() as f64;
        let sum = chunk.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / count, sum.1 / count)
    };
    finite.chunks(each).map(mean).collect()
}

/// The range of an axis; one of some height also where all values are the same.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let least = low.abs().max(high.abs()).max(1e-6) * 1e-3;
    if high - low < least { (low - least, high + least) } else { (low, high) }
}

fn round(value: f64) -> f64 {
    (10.0 * value).round() / 10.0
}

/// Three significant digits.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".into(),
        _ if !(0.001..10000.0).contains(&size) => format!("{value:.1e}"),
        _ => {
            let decimals = (2 - size.log10().floor() as i32).clamp(0, 5) as usize;
            let text = format!("{value:.decimals$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: Vec<(f64, f64)>) -> Line {
        Line { name: "<i>".into(), colour: 9, points, has_dots: false }
    }

    #[test]
    fn a_line_runs_from_corner_to_corner() {
        let chart = Chart::new("t", "e", vec![line(vec![(0.0, -1.0), (2.0, 3.0)])]).unwrap();
        assert_eq!(chart.lines[0].path, "46,166 332,8", "low at the left, high at the right");
        assert_eq!(chart.up.iter().map(|tick| tick.label.as_str()).collect::<Vec<_>>(), ["-1", "1", "3"]);
        let html = chart.render().unwrap();
        assert!(html.contains("&#60;i&#62;") && !html.contains("<i>"), "{html}");
    }

    #[test]
    fn what_is_not_finite_is_left_out_and_flat_lines_have_an_axis() {
        assert!(Chart::new("t", "e", vec![line(vec![(1.0, f64::NAN)]), line(Vec::new())]).is_none());
        let chart = Chart::new("t", "e", vec![line(vec![(0.0, 5.0), (1.0, f64::INFINITY), (1.0, 5.0)])]).unwrap();
        assert_eq!(chart.lines[0].path, "46,87 332,87");
    }

    #[test]
    fn long_lines_are_thinned_to_means() {
        let points = thinned((0..1000).map(|k| (f64::from(k), f64::from(k % 2))).collect());
        assert_eq!((points.len(), points[0]), (200, (2.0, 0.4)));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 1234.5, 0.05, -3.24159, 100_000.0, 2e-7].map(short),
            ["0", "1234", "0.05", "-3.24", "1.0e5", "2.0e-7"]
        );
    }
}
