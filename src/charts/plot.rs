//! Charts as SVG.

use plotters::prelude::*;

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
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
    RGBColor(127, 127, 127),
];

impl Chart<'_> {
    pub fn svg(&self) -> String {
        let mut text = String::new();
        self.draw(&mut text).expect("a chart is drawn into a string");
        text
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
        let label = |is_log: bool| {
            move |v: &f64| {
                let value = if is_log { 10_f64.powf(*v) } else { *v };
                if value != 0.0 && !(0.01..10_000.0).contains(&value.abs()) {
                    format!("{value:.0e}")
                } else if value.abs() >= 10.0 {
                    format!("{value:.0}")
                } else {
                    format!("{value:.2}")
                }
            }
        };
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(66)
            .build_cartesian_2d(range(|p| p.0), range(|p| p.1))?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&label(self.is_log_x))
            .y_label_formatter(&label(self.is_log_y))
            .light_line_style(WHITE.mix(0.0))
            .draw()?;
        for (index, ((series, points), bars)) in self.series.iter().zip(&placed).zip(&bars).enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
                .label(&series.label)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
            chart.draw_series(bars.iter().map(|bar| PathElement::new(bar.to_vec(), colour.stroke_width(1))))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
        Ok(())
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
        text
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let count = self.rows.len().max(1) as i32;
        let ends = self.rows.iter().flat_map(|(_, value, error)| [value - error, value + error]);
        let (low, high) = ends.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let margin = 0.08 * (high - low).max(1.0);
        let root = SVGBackend::with_string(text, (SIZE.0, 110 + 34 * count as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(230)
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
            chart.draw_series([PathElement::new(bar, COLOURS[0].stroke_width(2))])?;
            chart.draw_series([Circle::new((value, at()), 4, COLOURS[0].filled())])?;
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
        assert!(svg.contains("first") && svg.contains("second") && svg.contains("batch"));
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
