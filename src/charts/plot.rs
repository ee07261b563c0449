//! Charts as SVG: lines named at their ends, ticks where something was measured.

use super::theme;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

/// Points in order, joined by a line.
#[derive(Clone, Debug)]
pub struct Series {
    label: String,
    points: Vec<(f64, f64)>,
    /// Half the length of each point's bar; none where it is empty.
    errors: Vec<f64>,
}

impl Series {
    pub fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { label: label.into(), points, errors: Vec::new() }
    }

    /// Points (x, y, error of y).
    pub fn with_errors(label: impl Into<String>, points: &[(f64, f64, f64)]) -> Self {
        let errors = points.iter().map(|point| point.2).collect();
        Self { errors, ..Self::new(label, points.iter().map(|&(x, y, _)| (x, y)).collect()) }
    }
}

/// Lines over one pair of axes. On a logarithmic axis what is not positive is left out.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub is_log_x: bool,
    pub is_log_y: bool,
    pub series: Vec<Series>,
}

const SIZE: (u32, u32) = (860, 540);
/// Ticks at the values that were measured, if there are no more of them.
const MOST_TICKS: usize = 12;
/// Pixels from one name at the end of a line to the next, at least.
const NAME_HEIGHT: i32 = 17;

impl Chart<'_> {
    pub fn svg(&self) -> String {
        let mut text = String::new();
        self.draw(&mut text).expect("a chart is drawn into a string");
        theme::themed(text)
    }

    /// Where a value stands on its axis.
    fn place(value: f64, is_log: bool) -> Option<f64> {
        let place = if is_log { value.log10() } else { value };
        place.is_finite().then_some(place)
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let place = |x: f64, y: f64| Some((Self::place(x, self.is_log_x)?, Self::place(y, self.is_log_y)?));
        let placed: Vec<Vec<(f64, f64)>> =
            self.series.iter().map(|series| series.points.iter().filter_map(|&(x, y)| place(x, y)).collect()).collect();
        let bars: Vec<Vec<[(f64, f64); 2]>> = self
            .series
            .iter()
            .map(|series| {
                let bars = series.points.iter().zip(&series.errors);
                bars.filter_map(|(&(x, y), e)| Some([place(x, y - e)?, place(x, y + e)?])).collect()
            })
            .collect();
        let range = |of: fn(&(f64, f64)) -> f64| {
            let values = placed.iter().flatten().chain(bars.iter().flatten().flatten()).map(of);
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
            if low > high {
                return 0.0..1.0;
            }
            let margin = 0.05 * (high - low).max(1e-9);
            low - margin..high + margin
        };
        let label = |is_log: bool| move |v: &f64| tick_label(if is_log { 10_f64.powf(*v) } else { *v });
        let (x_range, y_range) = (range(|p| p.0), range(|p| p.1));
        let x_ticks = ticks(placed.iter().flatten().map(|p| p.0), &x_range, self.is_log_x);
        let y_ticks = ticks(std::iter::empty(), &y_range, self.is_log_y);
        let ends: Vec<_> = self.series.iter().zip(&placed).filter_map(|(s, p)| Some((&s.label, *p.last()?))).collect();
        let longest = ends.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(14)
            .margin_right(24 + (7 * longest as u32).min(SIZE.0 / 3))
            .x_label_area_size(44)
            .y_label_area_size(66)
            .build_cartesian_2d(Axis::new(x_range, x_ticks), Axis::new(y_range, y_ticks))?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(MOST_TICKS)
            .x_label_formatter(&label(self.is_log_x))
            .y_label_formatter(&label(self.is_log_y))
            .light_line_style(WHITE.mix(0.0))
            .draw()?;
        let mut names = Vec::new();
        for (index, ((series, points), bars)) in self.series.iter().zip(&placed).zip(&bars).enumerate() {
            let colour = theme::colour(index);
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
            chart.draw_series(bars.iter().map(|bar| PathElement::new(bar.to_vec(), colour.stroke_width(1))))?;
            names.extend(points.last().map(|end| (chart.backend_coord(end), &series.label, colour)));
        }
        // Names of lines that end near each other move apart.
        names.sort_by_key(|((_, y), ..)| *y);
        let mut lowest = i32::MIN;
        for ((x, y), label, colour) in names {
            lowest = y.max(lowest.saturating_add(NAME_HEIGHT));
            let style = ("sans-serif", 13).into_font().color(&colour);
            root.draw(&Text::new(label.as_str(), (x + 8, lowest - 7), style))?;
        }
        root.present()?;
        Ok(())
    }
}

/// An axis with its own ticks.
struct Axis {
    scale: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Axis {
    fn new(range: Range<f64>, ticks: Vec<f64>) -> Self {
        Self { scale: range.into(), ticks }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.scale.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.scale.range()
    }
}

/// Where an axis has its ticks: at what was measured, if that is few values; otherwise at round numbers.
fn ticks(measured: impl Iterator<Item = f64>, range: &Range<f64>, is_log: bool) -> Vec<f64> {
    let mut values: Vec<f64> = measured.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    if (1..=MOST_TICKS).contains(&values.len()) {
        return values;
    }
    let step = round_step((range.end - range.start) / 8.0);
    let round: Vec<f64> = if is_log {
        let decades = range.start.floor() as i32..=range.end.ceil() as i32;
        let all = decades.flat_map(|decade| [1.0_f64, 2.0, 5.0].map(|digit| f64::from(decade) + digit.log10()));
        all.filter(|tick| range.contains(tick)).collect()
    } else {
        let first = (range.start / step).ceil() as i64;
        (first..=(range.end / step).floor() as i64).map(|count| count as f64 * step).collect()
    };
    // A logarithmic axis over many decades has one tick for each, over less than an octave the round numbers of its logarithm.
    match round.len() {
        n if is_log && n > MOST_TICKS => round.into_iter().filter(|tick| tick.fract() == 0.0).collect(),
        0 | 1 if is_log => vec![range.start, (range.start + range.end) / 2.0, range.end],
        _ => round,
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is no less.
fn round_step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * decade >= least * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * decade
}

fn tick_label(value: f64) -> String {
    let nearest = value.round();
    if value != 0.0 && !(0.001..100_000.0).contains(&value.abs()) {
        format!("{value:.0e}")
    } else if (value - nearest).abs() < 1e-6 * value.abs().max(1.0) {
        format!("{nearest}")
    } else {
        // Three digits that count, without zeros at the end.
        let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 5) as usize;
        let text = format!("{value:.decimals$}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// One value with its error for each name, from top to bottom.
#[derive(Clone, Debug)]
pub struct Dots<'a> {
    pub title: &'a str,
    pub x: &'a str,
    /// (name, value, error)
    pub rows: Vec<(String, f64, f64)>,
}

impl Dots<'_> {
    pub fn svg(&self) -> String {
        let mut text = String::new();
        self.draw(&mut text).expect("a chart is drawn into a string");
        theme::themed(text)
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let count = self.rows.len().max(1) as i32;
        let ends = self.rows.iter().flat_map(|(_, value, error)| [value - error, value + error]);
        let (low, high) = ends.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let margin = 0.08 * (high - low).max(1.0);
        let longest = self.rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
        let root = SVGBackend::with_string(text, (SIZE.0, 110 + 34 * count as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size((30 + 6 * longest as u32).min(SIZE.0 / 2))
            .build_cartesian_2d(low - margin..high + margin, (0..count).into_segmented())?;
        let name = |segment: &SegmentValue<i32>| match segment {
            // Segments count from the bottom.
            SegmentValue::CenterOf(at) if (0..count).contains(at) => {
                self.rows.get((count - 1 - at) as usize).map_or(String::new(), |row| row.0.clone())
            }
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_labels(self.rows.len())
            .y_label_formatter(&name)
            .light_line_style(WHITE.mix(0.0))
            .draw()?;
        for (index, &(_, value, error)) in self.rows.iter().enumerate() {
            let at = || SegmentValue::CenterOf(count - 1 - index as i32);
            let bar = vec![(value - error, at()), (value + error, at())];
            chart.draw_series([PathElement::new(bar, theme::colour(0).stroke_width(2))])?;
            chart.draw_series([Circle::new((value, at()), 4, theme::colour(0).filled())])?;
        }
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_and_leaves_out_what_has_no_logarithm() {
        let line = |label: &str, points: &[(f64, f64)]| Series::new(label, points.to_vec());
        let series = vec![line("first", &[(1.0, 0.0), (10.0, 2.0), (100.0, 1.0)]), line("second", &[])];
        let chart = Chart { title: "t", x: "batch", y: "bias", is_log_x: true, is_log_y: true, series };
        let svg = chart.svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<circle").count(), 2, "0 has no logarithm");
        assert!(svg.contains("first") && svg.contains("batch"));
        assert!(!svg.contains("second"), "a line without points has no end to be named at");
    }

    /// Texts with their places (x, y), as the SVG has them.
    fn texts(svg: &str) -> Vec<(String, f64, f64)> {
        let number = |tag: &str, key: &str| -> f64 {
            tag.split(&format!(" {key}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        let tags = svg.split("<text").skip(1).map(|rest| rest.split_once('>').unwrap());
        tags.map(|(tag, rest)| {
            (rest.split("</text>").next().unwrap().trim().to_owned(), number(tag, "x"), number(tag, "y"))
        })
        .collect()
    }

    #[test]
    fn lines_are_named_at_their_ends_without_overlap() {
        let near = |label: &str, y: f64| Series::new(label, vec![(8.0, 0.0), (256.0, y)]);
        let series = vec![near("low", 1.0), near("high", 1.01), near("far", 5.0)];
        let svg = Chart { title: "t", x: "x", y: "y", is_log_x: true, is_log_y: false, series }.svg();
        let texts = texts(&svg);
        let at = |name: &str| texts.iter().find(|text| text.0 == name).unwrap_or_else(|| panic!("{name} {texts:?}"));
        let last_dot = svg.split("cx=\"").skip(1).map(|r| r.split('"').next().unwrap().parse::<f64>().unwrap());
        let end = last_dot.fold(0.0, f64::max);
        assert!([at("low"), at("high"), at("far")].iter().all(|text| text.1 > end), "{texts:?}");
        assert!(at("low").2 - at("high").2 >= f64::from(NAME_HEIGHT), "the lower line has the lower name: {texts:?}");
        assert!(at("far").2 < at("high").2);
    }

    #[test]
    fn ticks_stand_where_something_was_measured() {
        let log = |v: f64| v.log10();
        let measured = [8.0, 32.0, 256.0, 8.0].map(log);
        let at = ticks(measured.into_iter(), &(log(7.0)..log(300.0)), true);
        assert_eq!(at.iter().map(|&t| tick_label(10_f64.powf(t))).collect::<Vec<_>>(), ["8", "32", "256"]);
        let labels = |range: Range<f64>| -> Vec<String> {
            ticks(std::iter::empty(), &range, false).into_iter().map(tick_label).collect()
        };
        assert_eq!(labels(41.2..58.9), ["45", "50", "55"]);
        assert_eq!(labels(0.1..0.42), ["0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4"]);
        assert_eq!(ticks(std::iter::empty(), &(-2.5..0.5), true).len(), 9, "1, 2 and 5 of three decades");
    }

    #[test]
    fn numbers_are_written_as_people_write_them() {
        let all = [0.0, 100.0, 2048.0, 0.05, 12.5, 0.1 + 0.2, 1e-7, -3.25];
        assert_eq!(all.map(tick_label), ["0", "100", "2048", "0.05", "12.5", "0.3", "1e-7", "-3.25"]);
    }

    #[test]
    fn errors_widen_the_axis() {
        let chart = |error| {
            let series = vec![Series::with_errors("s", &[(1.0, 50.0, error), (2.0, 51.0, 0.0)])];
            Chart { title: "t", x: "x", y: "y", is_log_x: false, is_log_y: false, series }.svg()
        };
        let heights = |svg: String| -> Vec<f64> {
            svg.split("cy=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
        };
        let apart = |error| heights(chart(error)).windows(2).map(|pair| pair[0] - pair[1]).sum::<f64>();
        assert!(apart(0.1) > 300.0 && apart(45.0) < 30.0, "{} {}", apart(0.1), apart(45.0));
    }

    #[test]
    fn every_name_has_its_dot() {
        let rows = vec![("sogclr".to_owned(), 70.0, 0.5), ("simclr".to_owned(), 65.0, 1.0)];
        let svg = Dots { title: "t", x: "top-1 %", rows }.svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        let place = |name: &str| svg.find(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(place("simclr") < place("sogclr"), "labels are written from the bottom");
    }
}
