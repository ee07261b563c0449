//! Many names in little memory: each is kept as what it adds to the one before, so files of one folder share its path, and is
//! read from the start of its block.

use super::ledger::{put_number, take_number};

/// Names of a block: the first is whole.
const BLOCK: usize = 16;

/// Names in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
    /// Where each block begins.
    blocks: Vec<u64>,
    count: usize,
    last: String,
}

impl Names {
    pub fn push(&mut self, name: &str) {
        if self.count.is_multiple_of(BLOCK) {
            self.blocks.push(self.bytes.len() as u64);
            self.last.clear();
        }
        let common = self.last.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        put_number(&mut self.bytes, common as u64);
        put_number(&mut self.bytes, (name.len() - common) as u64);
        self.bytes.extend(&name.as_bytes()[common..]);
        self.last.clear();
        self.last.push_str(name);
        self.count += 1;
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// A name by its place.
    pub fn get(&self, index: usize) -> String {
        assert!(index < self.count, "name {index} of {}", self.count);
        let (mut at, mut name) = (self.blocks[index / BLOCK] as usize, Vec::new());
        for _ in 0..=index % BLOCK {
            self.read(&mut at, &mut name);
        }
        String::from_utf8(name).expect("names were texts")
    }

    /// Makes of the name before the one that begins at `at`.
    fn read(&self, at: &mut usize, name: &mut Vec<u8>) {
        let mut number = || take_number(&self.bytes, at).expect("lengths stand before a name") as usize;
        let (common, added) = (number(), number());
        name.truncate(common);
        name.extend(&self.bytes[*at..*at + added]);
        *at += added;
    }
}

impl<T: AsRef<str>> FromIterator<T> for Names {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        let mut all = Self::default();
        names.into_iter().for_each(|name| all.push(name.as_ref()));
        all.bytes.shrink_to_fit();
        all.blocks.shrink_to_fit();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_names_come_back(names in prop::collection::vec("[ab/é日]{0,12}", 0..70)) {
            let kept: Names = names.iter().collect();
            prop_assert_eq!(kept.len(), names.len());
            for (index, name) in names.iter().enumerate() {
                prop_assert_eq!(&kept.get(index), name);
            }
        }
    }

    /// ImageNet's names are 31 bytes long.
    #[test]
    fn names_of_folders_take_a_third_of_their_length() {
        let names = (0..20_000).map(|i| format!("n{:08}/n{0:08}_{}.JPEG", 1_440_764 + i / 1300 * 311, i % 1300 * 17));
        let kept: Names = names.collect();
        let per_name = (kept.bytes.len() + 8 * kept.blocks.len()) as f64 / kept.len() as f64;
        assert!(per_name < 12.0, "{per_name}");
    }
}
