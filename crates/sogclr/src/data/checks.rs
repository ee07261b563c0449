//! The check of images before a run: each is read and decoded once, unless it is known from an earlier check. What is known is
//! kept in the user's cache folder and holds for a file of the same path, size and times alone.

use super::check_cache::{CheckCache, stamp_of};
use super::ledger::Record;
use super::manifest::caption_hash;
use super::{DataError, Fingerprint, Split};
use crate::math::{Purpose, SampleRng};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// Images that are checked at once; what is checked is remembered in such parts, so that a killed check loses one.
const CHUNK: usize = 2048;

/// How many images a sample has.
const SAMPLE: usize = 1000;

/// Which images are read and decoded before a run begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckImages {
    /// Every one.
    #[default]
    All,
    /// A thousand, drawn by the seed.
    Sample,
    /// None.
    None,
}

impl CheckImages {
    /// What the settings leave out.
    pub(super) fn is_all(&self) -> bool {
        *self == Self::All
    }

    /// The ids to look at; `None` is all of them.
    fn ids(self, count: usize, seed: u64) -> Option<BTreeSet<usize>> {
        match self {
            Self::Sample if count > SAMPLE => {
                let mut rng = SampleRng::new(seed, Purpose::Subset, 1, 0, 0);
                let mut ids = BTreeSet::new();
                while ids.len() < SAMPLE {
                    ids.insert(rng.uniform(0.0, count as f64) as usize);
                }
                Some(ids)
            }
            Self::None => Some(BTreeSet::new()),
            _ => None,
        }
    }
}

/// The bytes of a hash; of what is none, as programs may say what they like of their own images, a hash.
pub(super) fn digest(hash: &str) -> [u8; 32] {
    *blake3::Hash::from_hex(hash).unwrap_or_else(|_| blake3::hash(hash.as_bytes())).as_bytes()
}

/// Tells `take` what is known of each sample of `ids`, in their order: its record, or what is wrong with it. `progress` is called
/// once for each. Gives what the user should know.
pub(super) fn each(
    split: &Split,
    ids: Range<usize>,
    which: CheckImages,
    seed: u64,
    progress: impl Fn() + Sync,
    take: impl FnMut(usize, Result<Record, String>) -> Result<(), DataError>,
) -> Result<Vec<String>, DataError> {
    let cache = split.source.folder().and_then(CheckCache::of_user);
    each_with(cache, split, ids, which, seed, progress, take)
}

fn each_with(
    mut cache: Option<CheckCache>,
    split: &Split,
    ids: Range<usize>,
    which: CheckImages,
    seed: u64,
    progress: impl Fn() + Sync,
    mut take: impl FnMut(usize, Result<Record, String>) -> Result<(), DataError>,
) -> Result<Vec<String>, DataError> {
    let wanted = which.ids(split.len(), seed);
    let is_wanted = |id: usize| wanted.as_ref().is_none_or(|wanted| wanted.contains(&id));
    let look = |ids: &[usize], cache: &mut Option<CheckCache>| -> Vec<Result<Record, String>> {
        let known = ids.iter().map(|&id| (id, cache.as_mut().and_then(|cache| cache.find(&split.name(id)))));
        let known: Vec<(usize, Option<Record>)> = known.collect();
        let checked: Vec<(Result<Record, String>, bool)> = known
            .into_par_iter()
            .map(|(id, known)| {
                let checked = look_at(split, id, known, is_wanted(id));
                progress();
                checked
            })
            .collect();
        let remember = |(found, is_new): (Result<Record, String>, bool)| {
            if let (Some(cache), Ok(record), true) = (cache.as_mut(), &found, is_new) {
                cache.learn(record);
            }
            found
        };
        let found = checked.into_iter().map(remember).collect();
        cache.iter_mut().for_each(CheckCache::flush);
        found
    };
    // The cache is read from front to end, in the order of paths.
    if cache.is_none() || CheckCache::is_ordered(ids.clone().map(|id| split.name(id))) {
        let mut first = ids.start;
        while first < ids.end {
            let chunk: Vec<usize> = (first..(first + CHUNK).min(ids.end)).collect();
            for (found, &id) in look(&chunk, &mut cache).into_iter().zip(&chunk) {
                take(id, found)?;
            }
            first += chunk.len();
        }
    } else {
        let mut order: Vec<usize> = ids.clone().collect();
        order.sort_by_cached_key(|&id| CheckCache::order_of(&split.name(id)));
        let mut found: Vec<Option<Result<Record, String>>> = ids.clone().map(|_| None).collect();
        for chunk in order.chunks(CHUNK) {
            for (one, &id) in look(chunk, &mut cache).into_iter().zip(chunk) {
                found[id - ids.start] = Some(one);
            }
        }
        for (id, found) in ids.zip(found) {
            take(id, found.expect("every sample was looked at"))?;
        }
    }
    Ok(cache.map_or(Vec::new(), CheckCache::close))
}

/// What is known of a sample, and whether that is new.
fn look_at(split: &Split, id: usize, known: Option<Record>, is_wanted: bool) -> (Result<Record, String>, bool) {
    let row = split.row(id);
    // Before the image is read: a change while it is read counts as one after.
    let stamp = match split.source.folder() {
        Some(folder) => stamp_of(&folder.join(split.source.name(row))),
        None => None,
    };
    let (label, captions) = (split.label(id), caption_hash(split, id));
    if let (Some(known), Some(stamp)) = (known, stamp)
        && (known.size, known.modified, known.changed) == (stamp.size, Some(stamp.modified), stamp.changed)
    {
        return (Ok(Record { label, captions, ..known }), false);
    }
    let (modified, changed) = (stamp.map(|stamp| stamp.modified), stamp.and_then(|stamp| stamp.changed));
    let name = split.name(id);
    if !is_wanted {
        let size = stamp.map_or(0, |stamp| stamp.size);
        return (Ok(Record { name, size, modified, changed, hash: None, label, captions }), false);
    }
    match split.source.check(row) {
        Ok(Fingerprint { hash, size }) => {
            let modified = modified.or_else(|| u64::try_from(split.source.stamp(row)?.1).ok());
            let record = Record { name, size, modified, changed, hash: Some(digest(&hash)), label, captions };
            // Read while it grew: what was seen is not what has this size.
            let is_whole = stamp.is_some_and(|stamp| stamp.size == size);
            (Ok(record), is_whole)
        }
        Err(error) => (Err(error.to_string()), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataConfig, Dataset};
    use std::fs::File;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, SystemTime};

    fn png(root: &Path, name: &str, value: u8) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(4, 4, image::Rgb([value; 3])).save(&path).unwrap();
        age(&path);
    }

    /// An hour old: what has just been written may still change within the same tick of its clock.
    fn age(path: &Path) {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }

    /// A source that counts how many images are read.
    struct Counted(Split, AtomicUsize);

    impl crate::data::Source for Counted {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn image(&self, index: usize) -> Result<crate::data::Image, DataError> {
            self.0.image(index)
        }
        fn name(&self, index: usize) -> String {
            self.0.name(index)
        }
        fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.source.check(self.0.row(index))
        }
        fn folder(&self) -> Option<&Path> {
            self.0.source.folder()
        }
    }

    type Found = Vec<Result<Record, String>>;

    /// What is found, how many images were read, and what the user is told.
    fn checked(cache: &Path, root: &Path, which: CheckImages, limit: Option<usize>) -> (Found, usize, Vec<String>) {
        let config = DataConfig { path: Some(root.to_owned()), limit, ..Default::default() };
        let data = Dataset::open(&config, 0).unwrap();
        let counted = std::sync::Arc::new(Counted(data.train, AtomicUsize::new(0)));
        let split = Split::new(counted.clone(), None);
        let cache = CheckCache::open(cache, root, 0);
        let mut all = Vec::new();
        let notes = each_with(
            cache,
            &split,
            0..split.len(),
            which,
            5,
            || {},
            |_, found| {
                all.push(found);
                Ok(())
            },
        );
        (all, counted.1.load(Ordering::Relaxed), notes.unwrap())
    }

    fn names(found: &Found) -> Vec<&str> {
        found.iter().map(|found| found.as_ref().map_or("broken", |record| record.name.as_str())).collect()
    }

    #[test]
    fn what_was_checked_is_not_read_again_and_what_changed_is() {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (name, value) in [("a/1.png", 1), ("a.png", 2), ("b/1.png", 3), ("c.png", 4)] {
            png(root.path(), name, value);
        }
        let all = |limit| checked(cache.path(), root.path(), CheckImages::All, limit);
        let (first, read, _) = all(None);
        assert_eq!((read, names(&first)), (4, vec!["a/1.png", "a.png", "b/1.png", "c.png"]));
        let (second, read, notes) = all(None);
        assert_eq!((read, &second, notes), (0, &first, vec![]));
        // A part of the data is known as well, and does not make the rest forgotten.
        assert_eq!((all(Some(2)).1, all(None).1), (0, 0));
        // The same size and time, but the system knows when the file was changed.
        let modified = std::fs::metadata(root.path().join("c.png")).unwrap().modified().unwrap();
        let size = std::fs::metadata(root.path().join("c.png")).unwrap().len();
        std::fs::write(root.path().join("c.png"), vec![b'x'; size as usize]).unwrap();
        let file = File::options().write(true).open(root.path().join("c.png")).unwrap();
        file.set_modified(modified).unwrap();
        if cfg!(unix) {
            let (third, read, _) = all(None);
            assert_eq!((read, third[3].is_err()), (1, true), "a broken image passed");
            assert!(all(None).0[3].is_err(), "nor is it remembered");
        }
        png(root.path(), "c.png", 4);
        png(root.path(), "a/0.png", 9);
        std::fs::remove_file(root.path().join("b/1.png")).unwrap();
        let (fourth, read, _) = all(None);
        assert_eq!((read, names(&fourth)), (2, vec!["a/0.png", "a/1.png", "a.png", "c.png"]));
        assert_eq!(all(None).1, 0);
    }

    #[test]
    fn what_was_just_written_is_not_remembered() {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        png(root.path(), "a.png", 1);
        let file = File::options().write(true).open(root.path().join("a.png")).unwrap();
        file.set_modified(SystemTime::now()).unwrap();
        let read = || checked(cache.path(), root.path(), CheckImages::All, None).1;
        assert_eq!((read(), read()), (1, 1));
    }

    #[test]
    fn a_damaged_cache_is_said_and_not_trusted() {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        (0..5).for_each(|i| png(root.path(), &format!("{i}.png"), i));
        let all = || checked(cache.path(), root.path(), CheckImages::All, None);
        all();
        let file = std::fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&file).unwrap();
        for (what, bytes) in [
            (
                "damaged",
                [&whole[..whole.len() - 60], &[whole[whole.len() - 60] ^ 1], &whole[whole.len() - 59..]].concat(),
            ),
            ("cut", whole[..whole.len() - 60].to_vec()),
            ("not a file of this program", b"GIF89a, and so on".to_vec()),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let (found, read, notes) = all();
            assert_eq!((found.len(), read), (5, 5), "{what}");
            assert!(notes.len() == 1 && notes[0].contains(what), "{what}: {notes:?}");
            assert_eq!((all().1, all().2), (0, vec![]), "{what}: it is made anew");
        }
        // That of other data.
        let other = tempfile::tempdir().unwrap();
        png(other.path(), "0.png", 7);
        checked(cache.path(), other.path(), CheckImages::All, None);
        let mut all_of = std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path());
        let theirs = all_of.find(|path| *path != file).unwrap();
        std::fs::copy(theirs, &file).unwrap();
        let (_, read, notes) = all();
        assert!(read == 5 && notes[0].contains("other data"), "{read} {notes:?}");
    }

    /// A check that was killed: its file has no end, and its process no lock on it.
    #[test]
    fn a_killed_check_is_gone_on_with() {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        (0..6).for_each(|i| png(root.path(), &format!("{i}.png"), i));
        let mut killed = CheckCache::open(cache.path(), root.path(), 0).unwrap();
        let (found, ..) = checked(tempfile::tempdir().unwrap().path(), root.path(), CheckImages::All, None);
        found[..4].iter().for_each(|record| killed.learn(record.as_ref().unwrap()));
        killed.flush();
        killed.kill();
        let key = std::fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap().file_name();
        let merging = format!("{}.1.new", key.to_str().unwrap().split('.').next().unwrap());
        std::fs::write(cache.path().join(merging), b"half").unwrap();
        let all = || checked(cache.path(), root.path(), CheckImages::All, None);
        assert_eq!((all().1, all().1), (2, 0));
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1, "what it left is cleared away");
    }

    #[test]
    fn an_older_check_is_not_trusted_by_a_stricter_one() {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        png(root.path(), "a.png", 1);
        checked(cache.path(), root.path(), CheckImages::All, None);
        assert!(CheckCache::open(cache.path(), root.path(), 0).unwrap().find("a.png").is_some());
        assert!(CheckCache::open(cache.path(), root.path(), 1).unwrap().find("a.png").is_none());
    }

    #[test]
    fn a_sample_is_drawn_by_the_seed_and_nothing_is_read_where_nothing_is_wanted() {
        let ids = |seed| CheckImages::Sample.ids(100_000, seed).unwrap();
        assert_eq!((ids(1).len(), ids(1) == ids(1), ids(1) == ids(2)), (SAMPLE, true, false));
        assert!(CheckImages::Sample.ids(SAMPLE, 0).is_none(), "all of a few");
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        png(root.path(), "a.png", 1);
        let (found, read, _) = checked(cache.path(), root.path(), CheckImages::None, None);
        assert_eq!((read, found[0].as_ref().unwrap().hash), (0, None));
        checked(cache.path(), root.path(), CheckImages::All, None);
        let (found, read, _) = checked(cache.path(), root.path(), CheckImages::None, None);
        assert!(read == 0 && found[0].as_ref().unwrap().hash.is_some(), "what is known anyway is used");
    }
}
