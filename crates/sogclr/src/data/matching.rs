//! Which images of one list are in another, told by what they hold and not by what they are called.

use super::ledger::Record;
use super::{DataError, Manifest};
use std::collections::{HashMap, VecDeque};

/// No image of before.
const NEW: u32 = u32::MAX;

/// Where the images of a run come from, in terms of those it had before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// For each image its id before.
    from: Vec<u32>,
    /// Images there were before.
    before: usize,
}

impl Matching {
    /// Finds each image of `now` among those of `before`: by the hash of its content, or where that was not looked at by name,
    /// size and time. Of several with the same content those of the same name belong together, then the first that are left.
    pub fn between(before: &mut Manifest, now: &mut Manifest) -> Result<Self, DataError> {
        let mut named = HashMap::<[u8; 32], u32>::new();
        let mut all = HashMap::<[u8; 32], VecDeque<u32>>::new();
        let mut count = 0;
        before.for_each(|record| {
            let content = content(&record);
            named.insert(with_name(&content, &record.name), count);
            all.entry(content).or_default().push_back(count);
            count += 1;
            Ok(())
        })?;
        let (mut from, mut is_used) = (Vec::new(), vec![false; count as usize]);
        now.for_each(|record| {
            let same = named.get(&with_name(&content(&record), &record.name)).copied();
            same.iter().for_each(|&id| is_used[id as usize] = true);
            from.push(same.unwrap_or(NEW));
            Ok(())
        })?;
        let mut id = 0;
        now.for_each(|record| {
            let place: &mut u32 = &mut from[id];
            id += 1;
            if *place == NEW
                && let Some(left) = all.get_mut(&content(&record))
            {
                while let Some(old) = left.pop_front() {
                    if !std::mem::replace(&mut is_used[old as usize], true) {
                        *place = old;
                        break;
                    }
                }
            }
            Ok(())
        })?;
        Ok(Self { from, before: count as usize })
    }

    /// Images that were there before.
    pub fn kept(&self) -> usize {
        self.from.iter().filter(|&&old| old != NEW).count()
    }

    /// Images that there are.
    pub fn count(&self) -> usize {
        self.from.len()
    }

    /// Whether it is the same images in the same order.
    pub fn is_same(&self) -> bool {
        self.before == self.from.len() && self.from.iter().zip(0..).all(|(&old, id)| old == id)
    }

    /// The values of before in the places of now; `fresh` where there are none.
    pub fn carry<T: Copy>(&self, values: &[T], fresh: T) -> Vec<T> {
        self.from.iter().map(|&old| values.get(old as usize).copied().unwrap_or(fresh)).collect()
    }

    /// How many there are of each kind: `9,812 of 10,040 images; 228 are new, 31 are gone`.
    pub fn counts(&self) -> String {
        let (kept, now) = (self.kept(), self.count());
        let [kept_of, all, new, gone] = [kept, now, now - kept, self.before - kept].map(grouped);
        format!("{kept_of} of {all} images; {new} are new, {gone} are gone")
    }
}

fn content(record: &Record) -> [u8; 32] {
    let unseen = || {
        let Record { name, size, modified, .. } = record;
        *blake3::hash(format!("{name}\0{size}\0{modified:?}").as_bytes()).as_bytes()
    };
    record.hash.unwrap_or_else(unseen)
}

fn with_name(content: &[u8; 32], name: &str) -> [u8; 32] {
    *blake3::Hasher::new().update(content).update(name.as_bytes()).finalize().as_bytes()
}

/// 1234567 → 1,234,567
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|part| str::from_utf8(part).expect("digits")).collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(images: &[(&str, u8)]) -> Manifest {
        Manifest::of_records(images.iter().map(|&(name, content)| Record {
            name: name.into(),
            size: 3,
            modified: Some(7),
            hash: (content != 0).then_some([content; 32]),
            ..Record::default()
        }))
    }

    fn between(before: &[(&str, u8)], now: &[(&str, u8)]) -> Matching {
        Matching::between(&mut manifest(before), &mut manifest(now)).unwrap()
    }

    #[test]
    fn content_tells_renamed_images_apart_from_new_ones() {
        let before = [("a", 1), ("b", 2), ("c", 3), ("d", 4)];
        let now = [("0", 9), ("a", 1), ("b", 8), ("moved/c", 3)];
        let found = between(&before, &now);
        assert_eq!(found.carry(&[10, 20, 30, 40], -1), [-1, 10, -1, 30]);
        assert_eq!(found.counts(), "2 of 4 images; 2 are new, 2 are gone");
        assert!(!found.is_same() && between(&before, &before).is_same());
        assert!(!between(&before, &before[..3]).is_same());
        // Renamed alone: other names are no other images.
        assert!(between(&before, &[("a", 1), ("b", 2), ("c", 3), ("e", 4)]).is_same());
    }

    #[test]
    fn copies_of_one_image_keep_to_their_names_and_each_is_taken_once() {
        let before = [("a", 1), ("b", 1), ("c", 1)];
        let found = between(&before, &[("b", 1), ("0", 1), ("z", 1), ("zz", 1)]);
        assert_eq!(found.carry(&[10, 20, 30], -1), [20, 10, 30, -1]);
    }

    #[test]
    fn what_nobody_looked_at_is_told_by_name_size_and_time() {
        let found = between(&[("a", 0), ("b", 0)], &[("b", 0), ("c", 0)]);
        assert_eq!(found.carry(&[10, 20], -1), [20, -1]);
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
