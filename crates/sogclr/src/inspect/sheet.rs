//! Pictures to look at: what is suspicious, and what the encoder sees.

use super::{Finding, Flaw, Place, Report};
use crate::augment::{AugmentConfig, Augmenter};
use crate::config::RunConfig;
use crate::data::{DataError, Dataset, Image, Part};
use crate::math::{Layout, SampleRng};
use crate::report::{Cell, labelled_sheet};

/// Findings of a kind that are shown.
const SHOWN: usize = 12;
/// Cells in a row: three pairs of an image and the one that it repeats.
const COLUMNS: usize = 6;

/// Some findings of each kind, each beside the image that it repeats, as a PNG; `None` if there are none.
pub fn suspects_sheet(report: &Report, data: &Dataset) -> Option<Vec<u8>> {
    let mut cells = Vec::new();
    for flaw in Flaw::ALL {
        let of_kind = report.findings.iter().filter(|found| found.flaw == flaw).take(SHOWN);
        let shown: Vec<Cell> = of_kind.flat_map(|found| cells_of(found, data)).collect();
        let kind_ends = shown.len().next_multiple_of(COLUMNS);
        cells.extend(shown);
        // The next kind begins a row.
        cells.resize_with(cells.len().next_multiple_of(COLUMNS).max(kind_ends), || Cell {
            picture: Some(Image::new(1, 1, 3, vec![255_u8; 3])),
            lines: Vec::new(),
        });
    }
    (!cells.is_empty()).then(|| labelled_sheet(&cells, COLUMNS))
}

fn cells_of(found: &Finding, data: &Dataset) -> Vec<Cell> {
    let cell = |place: &Place, what: &str| {
        let picture = image_at(data, place);
        let size =
            picture.as_ref().map_or("no picture".to_owned(), |image| format!("{} x {}", image.width, image.height));
        Cell { picture, lines: vec![what.to_owned(), place.name.clone(), format!("{}, {size}", place.part)] }
    };
    let twin = found.twin.as_ref().map(|twin| cell(twin, "  of"));
    std::iter::once(cell(&found.image, found.flaw.words())).chain(twin).collect()
}

fn image_at(data: &Dataset, place: &Place) -> Option<Image> {
    match (place.part, &data.test) {
        (Part::Test, Some(test)) => test.image(place.id).ok(),
        _ => data.train.image(place.id).ok(),
    }
}

/// Training images, `rows` of them spread over the data, each beside `columns` of its views: those of the first epoch, then of the
/// next, pixel by pixel what the encoder is given, normalisation aside. A PNG.
pub fn views_sheet(config: &RunConfig, data: &Dataset, rows: usize, columns: usize) -> Result<Vec<u8>, DataError> {
    let (split, augment) = (&data.train, &config.augment);
    let rows = rows.min(split.len());
    let mut augmenter = Augmenter::new(augment, Layout::ChannelsLast);
    let mut cells = Vec::new();
    for id in (0..rows).map(|row| row * split.len() / rows) {
        let image = split.image(id)?;
        let size = format!("{} x {}", image.width, image.height);
        let views: Vec<Cell> = (0..columns)
            .map(|at| {
                let (epoch, view) = (at / augment.view_count(), at % augment.view_count());
                let picture =
                    view_of(&mut augmenter, augment, &image, SampleRng::augment(config.seed, epoch, id, view), view);
                let size = format!("{} x {}", picture.width, picture.height);
                Cell { picture: Some(picture), lines: vec![format!("epoch {} view {}", epoch + 1, view + 1), size] }
            })
            .collect();
        cells.push(Cell { picture: Some(image), lines: vec![split.name(id), size] });
        cells.extend(views);
    }
    Ok(labelled_sheet(&cells, columns + 1))
}

/// One view as a picture, with the mean and deviation put back.
fn view_of(
    augmenter: &mut Augmenter,
    augment: &AugmentConfig,
    image: &Image,
    mut rng: SampleRng,
    view: usize,
) -> Image {
    let mut first = 0;
    let group = augment.views.iter().find(|group| {
        first += group.count;
        view < first
    });
    let group = group.expect("a view of the configuration");
    let channels = augment.channels();
    let mut out = vec![0.0; channels * group.size * group.size];
    augmenter.view(image, group, &mut rng, &mut out);
    let level = |(at, value): (usize, &f32)| {
        let channel = at % channels;
        (255.0 * (value * augment.std[channel] + augment.mean[channel])).round().clamp(0.0, 255.0) as u8
    };
    let levels: Vec<u8> = out.iter().enumerate().map(level).collect();
    Image::new(group.size, group.size, channels, levels)
}
