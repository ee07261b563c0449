//! Originals beside views, nearest neighbours, and images by u.

use crate::report::looked::{Looked, Shown};
use crate::report::picture::data_uri;
use askama::Template;
use image::RgbImage;

/// Images whose neighbours are shown, and neighbours of each.
const QUERIES: usize = 8;
const NEIGHBOURS: usize = 6;

/// A picture with what is known of it.
pub(super) struct Card {
    uri: String,
    name: String,
    class: String,
    /// A number, or what it is.
    note: String,
    /// Whether it is of another class than the image it stands beside.
    is_other: bool,
}

impl Card {
    fn of(shown: &Shown, classes: &[String]) -> Self {
        let class = shown.class.and_then(|class| classes.get(class as usize).cloned());
        Self {
            uri: data_uri(&shown.picture),
            name: shown.name.clone(),
            class: class.or_else(|| shown.caption.clone()).unwrap_or_default(),
            note: String::new(),
            is_other: false,
        }
    }

    fn view(picture: &RgbImage, number: usize) -> Self {
        let name = format!("view {number}");
        Self { uri: data_uri(picture), note: name.clone(), name, class: String::new(), is_other: false }
    }
}

#[derive(Template)]
#[template(path = "report/pictures.html")]
pub(super) struct Pictures {
    title: &'static str,
    explanation: String,
    rows: Vec<Vec<Card>>,
    /// Whether the first of a row is what the others belong to.
    has_lead: bool,
}

/// What the encoder sees.
pub(super) fn views(looked: &Looked) -> Option<Pictures> {
    let rows = looked.viewed.iter().map(|viewed| {
        let original = Card::of(&viewed.original, &looked.classes);
        std::iter::once(original).chain(viewed.views.iter().zip(1..).map(|(view, n)| Card::view(view, n))).collect()
    });
    let rows: Vec<Vec<Card>> = rows.collect();
    let explanation =
        "An image, and the views of it that the encoder was shown in the first epoch. If you cannot tell \
                       what they show, neither can it: see `augment` in the configuration."
            .into();
    (!rows.is_empty()).then_some(Pictures { title: "What the encoder sees", explanation, rows, has_lead: true })
}

/// Images and those nearest to them.
pub(super) fn neighbours(looked: &Looked) -> Option<Pictures> {
    let count = looked.images.len();
    let row = |query: usize| {
        let own = &looked.images[query];
        let near = looked.nearest(query, NEIGHBOURS).into_iter().map(|(at, similarity)| {
            let other = &looked.images[at];
            Card {
                note: format!("{similarity:.2}"),
                is_other: other.class != own.class,
                ..Card::of(other, &looked.classes)
            }
        });
        std::iter::once(Card::of(own, &looked.classes)).chain(near).collect()
    };
    let queries = (0..count).step_by((count / QUERIES).max(1)).take(QUERIES);
    let explanation = format!(
        "An image and the nearest of {} others, with the cosine of their features. Dashed: of another class.",
        count.saturating_sub(1)
    );
    let pictures =
        Pictures { title: "Nearest neighbours", explanation, rows: queries.map(row).collect(), has_lead: true };
    (count > 1).then_some(pictures)
}

/// Images at either end of u.
pub(super) fn extremes(looked: &Looked) -> Vec<Pictures> {
    let Some(extremes) = &looked.extremes else { return Vec::new() };
    let row = |images: &[(Shown, f32)]| {
        let card =
            |(shown, u): &(Shown, f32)| Card { note: format!("ln u {u:.2}"), ..Card::of(shown, &looked.classes) };
        vec![images.iter().map(card).collect::<Vec<_>>()]
    };
    let pictures =
        |title, explanation: String, images| Pictures { title, explanation, rows: row(images), has_lead: false };
    vec![
        pictures(
            "Most crowded",
            format!(
                "The largest u of {} images: many others look like these to the encoder. Look for duplicates.",
                extremes.seen
            ),
            &extremes.crowded,
        ),
        pictures(
            "Most isolated",
            "The smallest u: nothing looks like these. Look for what does not belong.".into(),
            &extremes.isolated,
        ),
    ]
}
