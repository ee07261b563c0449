//! What several ranks do beside the step: start alike, check the data in parts, and stay alike.

use super::trainer::deciding;
use super::{Checkpoint, TrainError};
use crate::comm::Group;
use crate::config::RunConfig;
use crate::data::{Checked, DataConfig, DataError, Manifest, Split};
use crate::encoder::{Compute, Precision};
use crate::provenance::Provenance;
use crate::system::host;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// What has to be the same on all ranks.
#[derive(Serialize, Deserialize)]
struct Card {
    host: String,
    /// By what it is called in an error.
    alike: Value,
}

/// Refuses ranks whose program, instruction set or settings differ from those of rank 0.
pub(super) fn start_alike(
    group: &Group,
    provenance: &Provenance,
    config: &RunConfig,
    compute: &Compute,
) -> Result<(), TrainError> {
    let mut settings = deciding(config);
    settings["train"]["device"] = json!(config.train.device);
    let (isa, has_bf16) = (compute.isa(), compute.precision() == Precision::Bf16);
    let alike = json!({
        "the program": provenance.program,
        "numerics": provenance.numerics,
        "the instruction set": format!("{:?}", if has_bf16 { isa } else { isa.for_f32() }),
        "the setting": settings,
    });
    compare(group, alike)
}

/// Refuses ranks whose list of samples differs from that of rank 0.
fn same_samples(group: &Group, split: &Split) -> Result<(), TrainError> {
    if group.size() == 1 {
        return Ok(());
    }
    let mut hasher = blake3::Hasher::new();
    for id in 0..split.len() {
        let labelled = (split.name(id), split.label(id), split.captions(id));
        hasher.update(&serde_json::to_vec(&labelled).expect("plain data"));
    }
    let names = format!("whose names hash to {}", &hasher.finalize().to_hex()[..8]);
    compare(group, json!({ "samples,": split.len(), "samples": names }))
}

fn compare(group: &Group, alike: Value) -> Result<(), TrainError> {
    if group.size() == 1 {
        return Ok(());
    }
    let card = serde_json::to_vec(&Card { host: host(), alike }).expect("plain data");
    let cards = group.gather_bytes(card);
    let cards = cards.iter().map(|card| serde_json::from_slice(card).expect("what a rank has written"));
    let cards: Vec<Card> = cards.collect();
    for (rank, card) in cards.iter().enumerate() {
        if let Some((what, here, there)) = first_difference(&cards[0].alike, &card.alike) {
            return Err(TrainError::Unlike {
                rank,
                host: card.host.clone(),
                what: what.replacen("the setting.", "the setting ", 1),
                there,
                here,
            });
        }
    }
    Ok(())
}

/// Checks every image of `split` once, each rank its part, and makes the manifest. A rank that reads other files than the one
/// that checked them, a copy on a disk of its own, reads them itself.
pub(super) fn check_images(
    group: &Group,
    split: &mut Split,
    (config, seed): (&DataConfig, u64),
    notes: &mut Vec<String>,
    progress: impl Fn() + Sync,
) -> Result<(Manifest, Vec<String>), TrainError> {
    same_samples(group, split)?;
    let (rank, size, count) = (group.rank(), group.size(), split.len());
    let ours = rank * count / size..(rank + 1) * count / size;
    let checked = group.together(Manifest::check(split, ours, config.check, seed, progress))?;
    notes.extend_from_slice(&checked.notes);
    if size == 1 {
        return Ok(Manifest::of(split, vec![checked], config.skip_bad)?);
    }
    let parts = group.together(gathered(group, checked))?;
    let (mut manifest, bad) = Manifest::of(split, parts, config.skip_bad)?;
    let verified = manifest.verify(split).map_err(|error| match error {
        DataError::Changed(what) => TrainError::OtherCopy(what),
        other => other.into(),
    });
    group.together(verified)?;
    Ok((manifest, bad))
}

/// What all ranks have found.
fn gathered(group: &Group, checked: Checked) -> Result<Vec<Checked>, TrainError> {
    let Checked { mut manifest, bad, looked_at, .. } = checked;
    // Every rank takes part in both exchanges, also one whose part cannot be read.
    let ours = manifest.to_bytes();
    let manifests = group.gather_bytes(ours.as_deref().unwrap_or_default().to_vec());
    let others = group.gather_bytes(serde_json::to_vec(&(bad, looked_at)).expect("plain data"));
    ours?;
    let parts = manifests.into_iter().zip(others).map(|(manifest, other)| {
        let (bad, looked_at) = serde_json::from_slice(&other).expect("what a rank has written");
        Checked { manifest: Manifest::from_bytes(manifest), bad, looked_at, notes: Vec::new() }
    });
    Ok(parts.collect())
}

/// Refuses to go on where the ranks' replicas differ.
pub(super) fn still_alike(group: &Group, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    if group.size() == 1 {
        return Ok(());
    }
    let ours = serde_json::to_vec(&(host(), checkpoint.digests())).expect("plain data");
    let all = group.gather_bytes(ours);
    type Replica = (String, Vec<(String, u64)>);
    let mut all = all.iter().map(|all| serde_json::from_slice::<Replica>(all).expect("what a rank has written"));
    let (_, first) = all.next().expect("a group is not empty");
    for (rank, (host, digests)) in all.enumerate() {
        if let Some(((tensor, _), _)) = first.iter().zip(&digests).find(|(first, other)| first != other) {
            return Err(TrainError::Drift { step: checkpoint.step, rank: rank + 1, host, tensor: tensor.clone() });
        }
    }
    Ok(())
}

/// The first key whose value differs, with both values.
pub(super) fn first_difference(was: &Value, is: &Value) -> Option<(String, String, String)> {
    match (was, is) {
        (Value::Object(old), Value::Object(new)) => old.keys().chain(new.keys()).find_map(|key| {
            let at = |table: &Map<String, Value>| table.get(key).cloned().unwrap_or(json!("not there"));
            let (below, was, is) = first_difference(&at(old), &at(new))?;
            Some((if below.is_empty() { key.clone() } else { format!("{key}.{below}") }, was, is))
        }),
        _ => (was != is).then(|| (String::new(), was.to_string(), is.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::threads;
    use crate::data::Dataset;
    use crate::params::{HostTensor, NamedTensors};
    use crate::state::SampleState;

    fn checkpoint(last: f32) -> Checkpoint {
        let tensor = HostTensor { shape: vec![3], values: vec![1.0, 2.0, last] };
        Checkpoint {
            step: 7,
            method: "sogclr".into(),
            config: Value::Null,
            model: NamedTensors::from([("encoder.conv1.weight".to_owned(), tensor)]),
            optimizer: NamedTensors::new(),
            method_tensors: NamedTensors::new(),
            state: SampleState::new(2, &["log_u"]),
            window: Default::default(),
            provenance: Provenance::default(),
        }
    }

    #[test]
    fn ranks_check_their_parts_and_have_the_manifest_of_one() {
        let root = tempfile::tempdir().unwrap();
        for i in 0..7 {
            let picture = image::RgbImage::from_pixel(4, 4, image::Rgb([30 * i; 3]));
            picture.save(root.path().join(format!("{i}.png"))).unwrap();
        }
        std::fs::write(root.path().join("5.png"), b"broken").unwrap();
        let config = DataConfig { path: Some(root.path().to_owned()), skip_bad: true, ..Default::default() };
        let check = |group: Group| {
            let mut split = Dataset::open(&config, 0).unwrap().train;
            let (mut manifest, bad) = check_images(&group, &mut split, (&config, 0), &mut Vec::new(), || {}).unwrap();
            (manifest.to_bytes().unwrap(), bad, split.len(), split.name(5))
        };
        let one = check(Group::solo());
        assert_eq!((one.1.len(), one.2, one.3.as_str()), (1, 6, "6.png"));
        std::thread::scope(|scope| {
            let (check, ranks) = (&check, threads(3));
            let ranks: Vec<_> = ranks.into_iter().map(|group| scope.spawn(move || check(group))).collect();
            ranks.into_iter().for_each(|rank| assert!(rank.join().unwrap() == one));
        });
    }

    #[test]
    fn a_replica_that_drifted_by_one_bit_is_named() {
        let still = |drift: [f32; 3]| -> Vec<Result<(), TrainError>> {
            std::thread::scope(|scope| {
                let ranks = threads(3).into_iter();
                let ranks =
                    ranks.map(|group| scope.spawn(move || still_alike(&group, &checkpoint(drift[group.rank()]))));
                ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
            })
        };
        assert!(still([3.0; 3]).iter().all(Result::is_ok));
        for found in still([3.0, 3.0, 3.0_f32.next_up()]) {
            let Err(TrainError::Drift { step, rank, tensor, .. }) = found else { panic!("not noticed") };
            assert_eq!((step, rank), (7, 2));
            assert!(tensor.ends_with("encoder.conv1.weight"), "{tensor}");
        }
    }
}
