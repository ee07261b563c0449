//! Colours of charts, on light pages and on dark ones.

use plotters::style::RGBColor;

/// Of a line on white, and of the same line on a dark page.
const COLOURS: [(RGBColor, &str); 8] = [
    (RGBColor(31, 119, 180), "#6cb6ee"),
    (RGBColor(200, 39, 40), "#ff7b72"),
    (RGBColor(35, 135, 35), "#63cf6b"),
    (RGBColor(196, 90, 0), "#ffae57"),
    (RGBColor(130, 86, 175), "#c7a3f0"),
    (RGBColor(140, 86, 75), "#d0a093"),
    (RGBColor(10, 130, 145), "#5fd4e3"),
    (RGBColor(100, 100, 100), "#b0b5bd"),
];

/// The colour of the `index`-th line.
pub fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()].0
}

/// The chart with a style sheet: what it draws has colours as attributes, which a rule of a dark page overrides.
pub fn themed(svg: String) -> String {
    let mut rules =
        String::from("[fill='#FFFFFF']{fill:#14171c}[fill='#000000']{fill:#d7dce2}[stroke='#000000']{stroke:#9aa3ad}");
    for (RGBColor(r, g, b), dark) in COLOURS {
        let light = format!("#{r:02X}{g:02X}{b:02X}");
        rules += &format!("[fill='{light}']{{fill:{dark}}}[stroke='{light}']{{stroke:{dark}}}");
    }
    let end = svg.find('>').expect("an SVG begins with its tag") + 1;
    let (tag, drawing) = svg.split_at(end);
    format!("{tag}\n<style>@media (prefers-color-scheme: dark){{{rules}}}</style>{drawing}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_has_one_for_dark_pages() {
        let svg = themed(r##"<svg width="1"><rect fill="#1F77B4"/></svg>"##.to_owned());
        assert!(svg.starts_with("<svg width=\"1\">\n<style>@media (prefers-color-scheme: dark){"));
        assert!(svg.contains("[fill='#1F77B4']{fill:#6cb6ee}"));
        assert!(svg.ends_with(r##"</style><rect fill="#1F77B4"/></svg>"##));
    }
}
