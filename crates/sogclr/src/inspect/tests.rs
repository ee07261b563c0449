//! Data with every flaw there is, made here, and what is found in it.

use super::*;
use crate::data::{DataConfig, Source};
use crate::math::{Purpose, SampleRng};
use image::codecs::jpeg::JpegEncoder;
use image::imageops::{FilterType, brighten, resize};
use image::{DynamicImage, RgbImage};
use std::path::Path;

/// A photograph of sorts: a gradient, and discs of random places, sizes and colours over it.
fn scene(seed: u64) -> RgbImage {
    let mut rng = SampleRng::new(seed, Purpose::Augment, 0, 0, 0);
    let mut between = |low: f64, high: f64| rng.uniform(low, high);
    let (base, slope) = ([0; 3].map(|_| between(40.0, 160.0)), [0; 2].map(|_| between(-0.4, 0.4)));
    type Disc = (f64, f64, f64, [f64; 3]);
    let discs: Vec<Disc> = (0..14)
        .map(|_| (between(0.0, 160.0), between(0.0, 120.0), between(6.0, 36.0), [0; 3].map(|_| between(0.0, 255.0))))
        .collect();
    RgbImage::from_fn(160, 120, |x, y| {
        let (x, y) = (f64::from(x), f64::from(y));
        let inside = discs.iter().rev().find(|(cx, cy, r, _)| (x - cx).powi(2) + (y - cy).powi(2) < r * r);
        let ground = base.map(|level| level + slope[0] * x + slope[1] * y);
        image::Rgb(inside.map_or(ground, |disc| disc.3).map(|level| level.clamp(0.0, 255.0) as u8))
    })
}

fn save(picture: &RgbImage, path: &Path, quality: u8) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = std::fs::File::create(path).unwrap();
    match path.extension().unwrap().to_str().unwrap() {
        "jpg" => JpegEncoder::new_with_quality(file, quality).encode_image(picture).unwrap(),
        _ => DynamicImage::from(picture.clone()).save(path).unwrap(),
    }
}

fn report(root: &Path) -> (Report, Dataset) {
    let config = DataConfig { path: Some(root.to_owned()), ..Default::default() };
    let data = Dataset::open(&config, 0).unwrap();
    (inspect(&data, || {}), data)
}

fn of(report: &Report, flaw: Flaw) -> Vec<(&str, Option<&str>)> {
    let found = report.findings.iter().filter(|found| found.flaw == flaw);
    found.map(|found| (found.image.name.as_str(), found.twin.as_ref().map(|twin| twin.name.as_str()))).collect()
}

#[test]
fn copies_are_found_however_they_were_stored_and_other_pictures_are_not() {
    let root = tempfile::tempdir().unwrap();
    let scenes = 150;
    for seed in 0..scenes {
        save(&scene(seed), &root.path().join(format!("{seed:03}.jpg")), 92);
    }
    let copies = 25;
    for seed in 0..copies {
        let (picture, at) = (scene(seed), |how: &str| root.path().join(format!("{seed:03}z-{how}")));
        std::fs::copy(root.path().join(format!("{seed:03}.jpg")), at("same.jpg")).unwrap();
        save(&picture, &at("again.jpg"), 45);
        save(&picture, &at("lossless.png"), 0);
        save(&resize(&picture, 96, 72, FilterType::Lanczos3), &at("small.png"), 0);
        std::fs::copy(at("small.png"), at("small-too.png")).unwrap();
        save(&resize(&picture, 320, 240, FilterType::Triangle), &at("large.jpg"), 80);
        save(&brighten(&picture, 25), &at("bright.jpg"), 90);
        save(&brighten(&picture, -25), &at("dark.png"), 0);
    }
    let (report, _) = report(root.path());
    let (exact, near) = (of(&report, Flaw::Duplicate), of(&report, Flaw::NearDuplicate));
    assert_eq!(exact.len() as u64, 2 * copies, "{exact:?}");
    let wrong: Vec<_> = exact.iter().chain(&near).filter(|(name, twin)| name[..3] != twin.unwrap()[..3]).collect();
    assert!(wrong.is_empty(), "different pictures taken for one: {wrong:?}");
    let missed = 6 * copies as usize - near.len();
    assert!(missed <= 3, "{missed} of {} copies were not found", 6 * copies);
    assert!(near.iter().all(|(name, _)| name.contains('z')), "the first of its kind stays: {near:?}");
}

#[test]
fn each_flaw_is_found_once_and_what_is_sound_is_not() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for seed in 0..12 {
        let class = if seed == 0 { "rare" } else { "usual" };
        save(&scene(seed), &at(&format!("train/{class}/{seed}.png")), 0);
    }
    save(&scene(50), &at("val/usual/50.png"), 0);
    save(&scene(51), &at("val/usual/51.png"), 0);
    save(&scene(50), &at("train/usual/leaked.png"), 0);
    save(&scene(51), &at("train/usual/near.jpg"), 60);
    save(&RgbImage::from_pixel(160, 120, image::Rgb([250, 3, 3])), &at("train/usual/red.png"), 0);
    save(&RgbImage::from_pixel(160, 120, image::Rgb([3, 3, 250])), &at("train/usual/blue.png"), 0);
    save(&resize(&scene(60), 24, 18, FilterType::Triangle), &at("train/usual/small.png"), 0);
    save(&resize(&scene(61), 800, 120, FilterType::Triangle), &at("train/usual/wide.png"), 0);
    let mut half = scene(62);
    half.enumerate_rows_mut().skip(70).for_each(|(_, row)| row.for_each(|(_, _, pixel)| pixel.0 = [128; 3]));
    save(&half, &at("train/usual/half.png"), 0);
    std::fs::write(at("val/usual/bad.jpg"), b"\xFF\xD8 not a picture").unwrap();

    let (report, data) = report(root.path());
    let names = |flaw| of(&report, flaw).into_iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    for (flaw, expected) in [
        (Flaw::Unreadable, &["usual/bad.jpg"][..]),
        (Flaw::Damaged, &["usual/half.png"]),
        (Flaw::Blank, &["usual/blue.png", "usual/red.png"]),
        (Flaw::Leak, &["usual/leaked.png"]),
        (Flaw::NearLeak, &["usual/near.jpg"]),
        (Flaw::Tiny, &["usual/small.png"]),
        (Flaw::Strip, &["usual/wide.png"]),
        (Flaw::Duplicate, &[]),
        (Flaw::NearDuplicate, &[]),
    ] {
        assert_eq!(names(flaw), expected, "{flaw:?}");
        assert_eq!(report.count(flaw), expected.len());
    }
    let balance = report.balance.as_ref().unwrap();
    assert!(balance.is_uneven() && balance.smallest() == ("rare", 1) && balance.largest() == ("usual", 18));
    let sizes = report.sizes.as_ref().unwrap();
    assert_eq!((sizes.width[0], sizes.width[3], sizes.width[6]), (24.0, 160.0, 800.0));
    assert_eq!((sizes.shorter_side[0], sizes.aspect[6]), (18.0, 800.0 / 120.0));

    // The list has what spoils training, and can be read again.
    let list = Quarantine::parse(&report.quarantine()).unwrap();
    let listed: Vec<(&str, Part)> = list.entries.iter().map(|e| (e.name.as_str(), e.part.unwrap())).collect();
    let train = ["blue.png", "half.png", "leaked.png", "near.jpg", "red.png"].map(|name| format!("usual/{name}"));
    let expected = train.iter().map(|name| (name.as_str(), Part::Train)).chain([("usual/bad.jpg", Part::Test)]);
    assert_eq!(listed, expected.collect::<Vec<_>>());
    let text = report.quarantine();
    assert!(text.contains("# usual/wide.png\ttrain\ta strip: 800 × 120 pixels"), "{text}");

    let sheet = image::load_from_memory(&suspects_sheet(&report, &data).unwrap()).unwrap();
    assert_eq!(sheet.width(), 6 * 168 + 8);
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    let first = &json["findings"][0];
    assert_eq!((&first["flaw"], &first["part"]), (&"blank".into(), &"train".into()), "{first}");
}

/// Grey pictures of noise, at two depths; the last repeats the first at the other depth.
struct Deep(usize);

impl Source for Deep {
    fn count(&self) -> usize {
        self.0
    }

    fn image(&self, index: usize) -> Result<crate::data::Image, crate::data::DataError> {
        let seed = if index + 1 == self.0 { 0 } else { index as u64 };
        let mut rng = SampleRng::new(seed, Purpose::Augment, 1, 0, 0);
        let levels: Vec<u8> = (0..40 * 40).map(|_| rng.uniform(0.0, 256.0) as u8).collect();
        Ok(match index + 1 == self.0 {
            true => crate::data::Image::new(40, 40, 1, levels.iter().map(|&l| 257 * u16::from(l)).collect::<Vec<_>>()),
            false => crate::data::Image::new(40, 40, 1, levels),
        })
    }
}

#[test]
fn any_source_and_depth_is_looked_at_alike_on_any_number_of_threads() {
    let data = Dataset::new("deep", Split::new(std::sync::Arc::new(Deep(20)), None)).unwrap();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let report = pool.install(|| inspect(&data, || {}));
        (of(&report, Flaw::NearDuplicate).len(), report.findings)
    };
    let (near, findings) = with(1);
    assert_eq!((near, findings.len()), (1, 1), "{findings:?}");
    assert_eq!((findings[0].image.name.as_str(), findings[0].twin.as_ref().unwrap().id), ("#19", 0));
    assert_eq!(with(3).1, findings);
}

#[test]
fn the_sheet_of_views_shows_what_the_encoder_is_given() {
    use crate::config::{Overrides, RunConfig};
    let mut overrides = Overrides::default();
    for setting in ["data.limit=20", "augment.views=1x20+1x12", "method.kind=simclr", "encoder.name=resnet8"] {
        overrides.set(setting).unwrap();
    }
    overrides.set("augment.views=2x20").unwrap();
    let (config, data) = RunConfig::open(&overrides).unwrap();
    let sheet =
        |config: &RunConfig| image::load_from_memory(&views_sheet(config, &data, 3, 4).unwrap()).unwrap().to_rgb8();
    let first = sheet(&config);
    assert_eq!(first.dimensions(), (5 * 168 + 8, 3 * (160 + 25 + 8) + 8));
    // The first view of the second epoch of the second image, as the loader makes it: eight times its size.
    let mut augmenter = crate::augment::Augmenter::new(&config.augment, crate::math::Layout::ChannelsLast);
    let mut out = vec![0.0; 3 * 20 * 20];
    let (id, rng) = (20 / 3, &mut SampleRng::augment(config.seed, 1, 20 / 3, 0));
    augmenter.view(&data.train.image(id).unwrap(), &config.augment.views[0], rng, &mut out);
    let (left, top) = (8 + 3 * 168, 8 + 193);
    for (x, y) in [(0, 0), (7, 9), (19, 19)] {
        let value = out[3 * (20 * y + x)] * config.augment.std[0] + config.augment.mean[0];
        let shown = first.get_pixel(left + 8 * x as u32 + 4, top + 8 * y as u32 + 4).0[0];
        assert_eq!(f32::from(shown), (255.0 * value).round().clamp(0.0, 255.0), "{x} {y}");
    }
    assert_ne!(sheet(&RunConfig { seed: 9, ..config }), first);
}
