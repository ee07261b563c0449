//! Loads the encoder of a run, embeds images and finds the nearest of each.
//!
//! cargo run --release -p sogclr --example embed -- runs/first [photos/]

use sogclr::encoder::Compute;
use sogclr::math::{Isa, UnitRows, map_rows};
use sogclr::trained::TrainedRun;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let run = TrainedRun::open(arguments.next().ok_or("name a run folder")?.as_ref())?;
    let photos = arguments.next();

    // The run's own training images, unless others are named.
    let (images, bad) = run.images(photos.as_ref().map(|path| path.as_ref()), |_| || {})?;
    bad.iter().for_each(|problem| eprintln!("left out {problem}"));
    let features = run.encoder(Compute::cpu())?.extract(&images, |_| {})?.features;
    println!("{} images, {} features each", features.nrows(), features.ncols());

    let unit = UnitRows::new(features);
    let rows = unit.matrix().view();
    let nearest = map_rows(Isa::best(), rows, rows, |own, similarities| {
        let others = (0..similarities.len()).filter(|&other| other != own);
        others.max_by(|&a, &b| similarities[a].total_cmp(&similarities[b]))
    });
    for (id, other) in nearest.iter().enumerate().take(5) {
        let other = other.map_or("nothing".into(), |other| images.name(other));
        println!("{} is nearest to {other}", images.name(id));
    }
    Ok(())
}
