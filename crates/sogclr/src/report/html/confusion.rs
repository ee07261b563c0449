//! Which classes the features mix up.

use crate::report::looked::Looked;
use askama::Template;

/// Classes that a table shows; more are not read, so only the worst pairs are named.
const SHOWN: usize = 20;
/// Pairs that are named.
const PAIRS: usize = 10;

#[derive(Template)]
#[template(path = "report/confusion.html")]
pub(super) struct Confusion {
    images: usize,
    before: f64,
    after: f64,
    /// Empty where there are too many classes.
    names: Vec<String>,
    rows: Vec<Row>,
    pairs: Vec<Pair>,
}

struct Row {
    name: String,
    cells: Vec<Cell>,
}

struct Cell {
    percent: usize,
    is_right: bool,
}

struct Pair {
    class: String,
    taken_for: String,
    percent: usize,
}

/// `None` without labels.
pub(super) fn confusion(looked: &Looked) -> Option<Confusion> {
    let votes = looked.votes.as_ref()?;
    let percent = |class: usize, vote: usize| {
        let row = &votes.confusion[class];
        (100.0 * row[vote] as f64 / row.iter().sum::<usize>().max(1) as f64).round() as usize
    };
    let count = looked.classes.len();
    let others = |class: usize| (0..count).filter(move |&vote| vote != class).map(move |vote| (class, vote));
    let mut pairs: Vec<(usize, usize)> =
        (0..count).flat_map(others).filter(|&(a, b)| votes.confusion[a][b] > 0).collect();
    pairs.sort_by_key(|&(class, vote)| std::cmp::Reverse(percent(class, vote)));
    pairs.truncate(PAIRS);
    let name = |class: usize| looked.classes[class].clone();
    let shown = if count <= SHOWN { count } else { 0 };
    let row = |class: usize| Row {
        name: name(class),
        cells: (0..count).map(|vote| Cell { percent: percent(class, vote), is_right: vote == class }).collect(),
    };
    let pair = |(class, vote)| Pair { class: name(class), taken_for: name(vote), percent: percent(class, vote) };
    Some(Confusion {
        images: looked.images.len(),
        before: (1000.0 * votes.shares[0]).round() / 10.0,
        after: (1000.0 * votes.shares[1]).round() / 10.0,
        names: (0..shown).map(name).collect(),
        rows: (0..shown).map(row).collect(),
        pairs: pairs.into_iter().map(pair).collect(),
    })
}
