//! What a run is about, in a few lines for its user: the data, what looks wrong with it, and the settings.

use crate::error::CliError;
use crate::output::note;
use sogclr::config::RunConfig;
use sogclr::data::{Dataset, Split};
use sogclr::estimate::Forecast;
use std::path::Path;

/// Fewer images than this teach a network little.
const FEW_IMAGES: usize = 100;
/// Images whose shape is looked at, and how long one is that looks like a sheet or a strip.
const LOOKED_AT: usize = 64;
const LONG: usize = 4;

/// Images, classes and splits, the folders that they come from, and what was passed over.
pub fn describe(data: &Dataset) {
    let (layout, count) = (&data.layout, data.train.len());
    let captions: usize = (0..count).map(|id| data.train.captions(id).len()).sum();
    let labels = match (captions, data.classes.len(), layout.labels.as_str()) {
        (0, ..) if !data.train.is_labelled() => "unlabelled".to_owned(),
        (0, classes, "") => format!("{classes} classes"),
        (0, classes, by) => format!("{classes} classes {by}"),
        (captions, ..) => format!("{captions} captions"),
    };
    let folder = |path: &Path| format!("{}/", path.file_name().unwrap_or_default().to_string_lossy());
    let (train_folder, test_folder) = match &layout.splits {
        Some((train, test)) => (
            format!(" in {}", folder(train)),
            test.as_ref().map_or(String::new(), |test| format!("{}, ", folder(test))),
        ),
        None => Default::default(),
    };
    let test = match &data.test {
        Some(test) => format!("test: {test_folder}{} test images", thousands(test.len())),
        None => "no test images".to_owned(),
    };
    note!("data: {}, {} training images{train_folder}, {test}, {labels}", data.title, thousands(count));
    for aside in &layout.left_aside {
        note!("  {} is left aside: name it with --test to test on it", folder(aside));
    }
    if let Some(leaves) = layout.leaf_classes {
        note!("  there are folders in the class folders: --labels leaf makes {leaves} classes of them");
    }
    if let Some(passed_over) = layout.passed_over_text() {
        note!("  passed over: {passed_over}");
    }
}

/// Says what looks wrong with the data, as far as a look at a few images tells.
pub fn warn_of(data: &Dataset) {
    let count = data.train.len();
    if count < FEW_IMAGES {
        note!("warning: {count} training images are few: expect little of an encoder trained on fewer than a thousand");
    }
    let looked_at = count.min(LOOKED_AT);
    let long = (0..looked_at).filter(|place| is_long(&data.train, place * count / looked_at)).count();
    if 2 * long > looked_at {
        note!(
            "warning: most images are over {LONG} times as long as wide, like strips or sheets of sprites: two crops of \
             one may show different things; cut them up first"
        );
    }
}

fn is_long(split: &Split, id: usize) -> bool {
    let sides = |shape: sogclr::data::Dimensions| (shape.height.min(shape.width), shape.height.max(shape.width));
    split.dimensions(id).is_ok_and(|shape| sides(shape).1 > LONG * sides(shape).0)
}

/// The settings that matter most, and those that are not the defaults for such data.
pub fn settings(config: &RunConfig, data: &Dataset) -> Result<(), CliError> {
    let (method, encoder, train) = (config.method.name(), config.encoder.spec().name(), &config.train);
    let (size, device) = (config.augment.views[0].size, serde_json::to_value(train.device).unwrap_or_default());
    note!(
        "settings: {method}, {encoder}, {size} pixels, batch {}, {} epochs, {}",
        train.batch,
        train.epochs,
        device.as_str().unwrap_or_default()
    );
    let unusual = config.unusual(&data.describe())?;
    if !unusual.is_empty() {
        let text: Vec<String> = unusual.into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
        note!("  not the defaults for this data: {}", text.join(", "));
    }
    Ok(())
}

/// How long a run will take, and how to make a long one shorter.
pub fn time_told(config: &RunConfig, forecast: &Forecast) -> Vec<String> {
    let (seconds, epochs) = (forecast.seconds(), forecast.epochs);
    let mut lines = vec![format!(
        "time: about {} ({epochs} epochs at {:.0} images/s here); stop any time, `sogclr resume` continues",
        about(seconds),
        forecast.speed()
    )];
    if seconds > LONG_RUN {
        let fewer = forecast.epochs_in(LONG_RUN);
        let size = config.augment.views[0].size;
        let half =
            if size >= 64 { format!("; --image-size {} needs about a quarter", size / 2) } else { String::new() };
        lines.push(format!("  shorter: --epochs {fewer} takes an hour{half}; --hours 1 chooses for an hour"));
    }
    lines
}

/// Seconds that are worth a word on how to save some.
const LONG_RUN: f64 = 3600.0;

/// 50 s, 57 min, 3 h 10 min or 2.5 days.
pub fn about(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match seconds {
        s if s < 90.0 => format!("{:.0} s", s.max(1.0)),
        s if s < 3570.0 => format!("{minutes} min"),
        s if s < 36_000.0 => format!("{} h {} min", minutes / 60, minutes % 60),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// 2640 as `2,640`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let is_first_of_three = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    let chars = digits.chars().enumerate();
    chars.flat_map(|(at, digit)| [is_first_of_three(at).then_some(','), Some(digit)]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::{about, thousands};

    #[test]
    fn numbers_are_words() {
        let times = [0.2, 80.0, 3400.0, 11_400.0, 100_000.0, 200_000.0].map(about);
        assert_eq!(times, ["1 s", "80 s", "57 min", "3 h 10 min", "28 h", "2.3 days"]);
        let numbers = [7, 640, 2640, 12_640, 1_281_167].map(thousands);
        assert_eq!(numbers, ["7", "640", "2,640", "12,640", "1,281,167"]);
    }
}
