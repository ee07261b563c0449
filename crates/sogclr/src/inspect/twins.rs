//! Images that are there twice. Test images go first, so that of a picture in both splits the training image is the one to
//! leave out. An image is compared with those that stay: a chain of ever so little different pictures is not one picture.

use super::look::{Look, Looked};
use super::near::NearIndex;
use super::{Finding, Flaw, Place, place};
use crate::data::{Dataset, Part, Split};
use std::collections::HashMap;

/// An image that stays, by its split and number there.
type Kept = (Part, usize);

pub(super) fn find(data: &Dataset, [train, test]: [&[Looked]; 2]) -> Vec<Finding> {
    let mut search = Search { data, contents: HashMap::new(), near: NearIndex::new(), kept: Vec::new() };
    let mut found = Vec::new();
    for (part, looked) in [(Part::Test, test), (Part::Train, train)] {
        let looks = looked.iter().enumerate().filter_map(|(id, looked)| Some((id, looked.as_ref().ok()?)));
        found.extend(looks.filter_map(|(id, look)| search.next(part, id, look)));
    }
    found
}

struct Search<'a> {
    data: &'a Dataset,
    contents: HashMap<[u8; 32], Kept>,
    near: NearIndex<'a>,
    /// The images of the index, in its order.
    kept: Vec<Kept>,
}

impl<'a> Search<'a> {
    /// Compares an image with those that stay, and keeps it if it is like none of them.
    fn next(&mut self, part: Part, id: usize, look: &'a Look) -> Option<Finding> {
        // Blank images are a flaw of their own, and all alike.
        if look.is_blank {
            return None;
        }
        if let Some(&(of, twin)) = self.contents.get(&look.content) {
            let flaw = if of == part { Flaw::Duplicate } else { Flaw::Leak };
            let twin = self.place(of, twin);
            let detail = format!("the same pixels as {} image {}", twin.part, twin.name);
            return Some(Finding { flaw, image: self.place(part, id), detail, twin: Some(twin) });
        }
        // Also if it is left out as a near copy: what comes after may be exactly that copy.
        self.contents.insert(look.content, (part, id));
        if let Some((number, alike)) = self.near.find(look) {
            let (of, twin) = self.kept[number];
            let flaw = if of == part { Flaw::NearDuplicate } else { Flaw::NearLeak };
            let twin = self.place(of, twin);
            let detail = format!("looks as {} image {} does (correlation {alike:.3})", twin.part, twin.name);
            return Some(Finding { flaw, image: self.place(part, id), detail, twin: Some(twin) });
        }
        self.near.insert(look);
        self.kept.push((part, id));
        None
    }

    fn place(&self, part: Part, id: usize) -> Place {
        place(part, self.split(part), id)
    }

    fn split(&self, part: Part) -> &Split {
        match (part, &self.data.test) {
            (Part::Test, Some(test)) => test,
            _ => &self.data.train,
        }
    }
}
